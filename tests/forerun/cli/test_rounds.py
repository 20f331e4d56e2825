"""Colours follow the rounds, the text is exactly the gateway's, and nothing is lost without a terminal."""

import io

from rich.console import Console
from rich.text import Text

from forerun.cli import rounds
from forerun.client import Chunk, Round, SpeculationUsage


def spans(text: Text) -> list[tuple[str, str]]:
    return [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]


def round_of(drafted: list[str], committed: list[str], accepted: int) -> Round:
    return Round(
        draft_token_ids=range(len(drafted)),
        draft_texts=drafted,
        committed_token_ids=range(len(committed)),
        committed_texts=committed,
        accepted_count=accepted,
    )


def painted(text: str, token_count: int, *carried: Round) -> Text:
    return rounds.Painter().paint(Chunk(text=text, token_ids=range(token_count), rounds=carried))


def test_the_last_token_of_a_round_is_a_correction_a_bonus_or_plain() -> None:
    assert rounds.origins(round_of(["a", "x"], ["a", "b"], 1)) == ["accepted", "correction"]
    assert rounds.origins(round_of(["a"], ["a", "b"], 1)) == ["accepted", "bonus"]
    assert rounds.origins(round_of([], ["a"], 0)) == ["plain"]
    assert rounds.origins(round_of(["a", "b"], ["a"], 1)) == ["accepted"]  # an end token stopped the round


def test_each_token_gets_the_colour_of_its_origin() -> None:
    text = painted(" a b", 2, round_of([" a", " x"], [" a", " b"], 1))
    assert spans(text) == [(" a", rounds.STYLES["accepted"]), (" b", rounds.STYLES["correction"])]


def test_a_character_made_of_several_tokens_is_shown_whole() -> None:
    text = painted("é!", 3, round_of(["\ufffd", "\ufffd"], ["\ufffd", "\ufffd", "!"], 2))
    assert text.plain == "é!"
    assert spans(text) == [("é", rounds.STYLES["accepted"]), ("!", rounds.STYLES["bonus"])]


def test_text_that_was_held_back_is_coloured_when_it_comes() -> None:
    painter = rounds.Painter()
    carried = round_of(["a"], ["a", "b"], 1)
    assert painter.paint(Chunk(rounds=[carried])).plain == ""
    later = painter.paint(Chunk(text="ab", token_ids=[1, 2]))
    assert spans(later) == [("a", rounds.STYLES["accepted"]), ("b", rounds.STYLES["bonus"])]


def test_text_cut_by_a_stop_string_is_shown_as_far_as_it_goes() -> None:
    assert painted("hel", 1, round_of([], ["hello"], 0)).plain == "hel"


def test_text_without_rounds_stays_as_it_is() -> None:
    assert painted("as it is", 3).plain == "as it is"


def test_the_table_has_a_line_a_round_with_whitespace_made_visible() -> None:
    buffer = io.StringIO()
    carried = [round_of([" a", "\n"], [" a", " b"], 1), round_of([], ["c"], 0)]
    Console(file=buffer, width=150).print(rounds.table(carried))
    lines = buffer.getvalue().splitlines()
    assert len(lines) == 3
    assert " a|↵" in lines[1]
    assert "1/2" in lines[1]
    assert " a| b" in lines[1]
    assert "\x1b" not in buffer.getvalue()


def test_the_summary_gives_rate_positions_and_length() -> None:
    usage = SpeculationUsage(
        rounds=4,
        drafted_tokens=5,
        accepted_tokens=3,
        accepted_per_position=[3, 0],
        drafted_per_position=[3, 2],
        mean_accepted_length=1.5,
        rollbacks=1,
    )
    assert rounds.summary(usage) == (
        "4 rounds, 3 of 5 candidates accepted (60%; by position 1.00 0.00), 1.50 tokens a round, 1 rollbacks"
    )
    assert rounds.summary(SpeculationUsage(rounds=9)) == "9 rounds, no candidates"
