"""The verdict on both ways to answer: honest about speed, strict about texts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from forerun.cli.comparison import Comparison, speed, verdict
from forerun.client import Answer, Finished, SpeculationUsage, Timing


def answer(token_ids: list[int], pace_ms: int, text: str = "same", rounds: int = 1) -> Answer:
    timing = Timing(time_per_output_token_ns=pace_ms * 1_000_000)
    finished = Finished(timing=timing, speculation=SpeculationUsage(rounds=rounds))
    return Answer(text=text, token_ids=token_ids, finished=finished)


def judged(*pairs: tuple[Answer, Answer]) -> tuple[int, str]:
    """The exit code, and what is printed."""
    buffer = io.StringIO()
    code = verdict(Console(file=buffer, width=200), [Comparison(f"kind {i}", *pair) for i, pair in enumerate(pairs)])
    return code, buffer.getvalue()


def test_speed_is_all_tokens_after_the_first_by_all_their_time() -> None:
    assert speed([answer([1, 2, 3], 50), answer([1, 2, 3], 150)]) == pytest.approx(10.0)
    assert speed([answer([1, 2, 3], 50), answer([1], 0)]) == pytest.approx(20.0)
    assert speed([answer([1], 0)]) == 0.0


def test_equal_texts_are_identical_and_a_gain_is_a_gain() -> None:
    code, said = judged((answer([1, 2], 50), answer([1, 2], 25)))
    assert code == 0
    assert "2.00 times as fast" in said
    assert "identical" in said


def test_slower_speculation_is_said_to_be_slower() -> None:
    code, said = judged((answer([1, 2], 50), answer([1, 2], 100)))
    assert code == 0
    assert "speculation is slower here, at 0.50 times the speed" in said


def test_several_kinds_have_a_row_each_and_one_for_all() -> None:
    code, said = judged(
        (answer([1, 2, 3], 60), answer([1, 2, 3], 20)), (answer([4, 5, 6], 20), answer([4, 5, 6], 20, rounds=3))
    )
    rows = [line.split() for line in said.splitlines()]
    assert ["kind", "0", "16.7", "50.0", "3.00", "3.00"] in rows
    assert ["kind", "1", "50.0", "50.0", "1.00", "1.00"] in rows
    assert ["all", "25.0", "50.0", "2.00", "1.50"] in rows
    assert (code, "2.00 times as fast here" in said) == (0, True)


def test_different_texts_fail_and_are_shown() -> None:
    same = answer([1, 2], 50)
    code, said = judged((same, same), (answer([1, 2, 3], 50, "abc"), answer([1, 9, 3], 50, "axc")))
    assert code == 1
    assert "kind 1: they part at output token 1" in said
    assert "'abc'" in said and "'axc'" in said
    assert "identical" not in said
