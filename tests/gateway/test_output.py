"""Text and ids leave together, end at the stop string, and can be taken up again from the ids alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.logprobs import TokenLogprobs
from gateway.output import Delta, Output, OutputToken
from gateway.tokenizer import Tokenizer
from tests.gateway.small_tokenizers import byte_level_tokenizer, sentencepiece_tokenizer, write_folder

BUILDERS = {"byte_level": byte_level_tokenizer, "llama": sentencepiece_tokenizer}


@pytest.fixture(scope="module", params=BUILDERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_folder(tmp_path_factory.mktemp(request.param), BUILDERS[request.param]()))


@dataclass(frozen=True)
class Case:
    """A stream of tokens, the stop strings asked for, and how the last token counts."""

    ids: list[int]
    stops: list[str]
    include_stop: bool
    min_tokens: int
    ends: bool

    def output(self, tokenizer: Tokenizer) -> Output:
        return Output(tokenizer, self.stops, include_stop=self.include_stop, min_tokens=self.min_tokens)

    def tokens(self) -> list[OutputToken]:
        return [OutputToken(token_id, TokenLogprobs(-float(n))) for n, token_id in enumerate(self.ids)]


@st.composite
def cases(draw: st.DrawFn, tokenizer: Tokenizer) -> Case:
    # Few letters, so that stop strings begin, break off and complete all the time.
    written = st.text("aE你", min_size=1, max_size=6).map(lambda text: tokenizer.encode_text(text, False))
    anything = st.integers(0, tokenizer.vocabulary_size + 1).map(lambda token_id: [token_id])
    parts = draw(st.lists(st.one_of(written, written, anything), max_size=8))
    stops = draw(st.lists(st.text("aE你 é", min_size=1, max_size=4), max_size=2))
    ids = [token_id for part in parts for token_id in part][:40]
    return Case(ids, stops, draw(st.booleans()), draw(st.sampled_from([0, 0, 3])), draw(st.booleans()))


def in_messages(draw: st.DrawFn, tokens: list[OutputToken]) -> list[list[OutputToken]]:
    messages = []
    while tokens:
        size = draw(st.integers(1, 4))
        messages.append(tokens[:size])
        tokens = tokens[size:]
    return messages


def run(output: Output, messages: list[list[OutputToken]], ends: bool) -> list[Delta]:
    deltas = []
    for message in messages:
        deltas.append(output.push(message, ends=ends and message is messages[-1]))
        if deltas[-1].stop is not None:
            return deltas
    return [*deltas, output.finish()]


def joined(deltas: list[Delta]) -> Delta:
    return Delta("".join(delta.text for delta in deltas), sum((delta.tokens for delta in deltas), ()), deltas[-1].stop)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_chunking_gives_the_same_total(tokenizer: Tokenizer, data: st.DataObject) -> None:
    case = data.draw(cases(tokenizer))
    one_by_one = joined(run(case.output(tokenizer), [[token] for token in case.tokens()], case.ends))
    assert joined(run(case.output(tokenizer), in_messages(data.draw, case.tokens()), case.ends)) == one_by_one


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_released_text_is_the_text_of_released_ids(tokenizer: Tokenizer, data: st.DataObject) -> None:
    case = data.draw(cases(tokenizer))
    tokens = case.tokens()
    silent = case.ends and not case.include_stop
    text, released = "", ()
    deltas = run(case.output(tokenizer), in_messages(data.draw, tokens), case.ends)
    for delta in deltas:
        text, released = text + delta.text, released + delta.tokens
        assert list(released) == tokens[: len(released)], "always a prefix, with the logprobs of its own tokens"
        ids = [token.token_id for token in released]
        whole = tokenizer.decode(ids[:-1] if silent and len(ids) == len(tokens) else ids)
        if delta.stop is None:
            assert text == whole
        elif case.include_stop:
            assert whole.startswith(text) and text.endswith(delta.stop)
        else:
            assert whole.startswith(text + delta.stop)
    if deltas[-1].stop is None:
        assert list(released) == tokens
        if not case.min_tokens:
            assert not any(stop in text for stop in case.stops)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_resumed_stream_is_the_uninterrupted_one(tokenizer: Tokenizer, data: st.DataObject) -> None:
    case = data.draw(cases(tokenizer))
    tokens = case.tokens()
    whole = joined(run(case.output(tokenizer), [tokens] if tokens else [], case.ends))

    messages = in_messages(data.draw, tokens)
    first, received = case.output(tokenizer), [Delta()]
    for message in messages[: data.draw(st.integers(0, len(messages)))]:
        if received[-1].stop is None:
            received.append(first.push(message, ends=case.ends and message is messages[-1]))
    before = joined(received)
    if before.stop is not None or (case.ends and len(before.tokens) == len(tokens)):
        return  # the client has it all
    second = case.output(tokenizer)
    assert second.replay([OutputToken(token.token_id) for token in before.tokens]) is None
    after = joined(run(second, in_messages(data.draw, tokens[len(before.tokens) :]), case.ends))
    assert before.text + after.text == whole.text
    assert before.tokens + after.tokens == whole.tokens
    assert after.stop == whole.stop


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_replaying_ids_that_complete_a_stop_reports_it(tokenizer: Tokenizer, data: st.DataObject) -> None:
    case = replace(data.draw(cases(tokenizer)), ends=False)
    deltas = run(case.output(tokenizer), [[token] for token in case.tokens()], ends=False)
    whole, resumed = joined(deltas), case.output(tokenizer)
    stop = resumed.replay(whole.tokens)
    if stop is None:  # nothing stopped it, or only the end of its text did
        rest = resumed.finish()
        assert (rest.text, rest.tokens, rest.stop) == ("", (), whole.stop)
    else:
        assert stop == whole.stop
        with pytest.raises(AssertionError):
            resumed.push([OutputToken(0)])


def encode(tokenizer: Tokenizer, text: str) -> list[OutputToken]:
    return [OutputToken(token_id) for token_id in tokenizer.encode_text(text, True)]


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_folder(tmp_path_factory.mktemp("letters"), byte_level_tokenizer()))


def test_ids_wait_for_text_that_may_become_a_stop(letters: Tokenizer) -> None:
    output = Output(letters, ["qZx"])
    q, z, end, x = (encode(letters, text)[0] for text in ("q", "Z", "<|im_end|>", "x"))
    assert output.push([q, z]) == Delta()
    assert output.push([end]) == Delta() and output.held_tokens == 3
    assert output.push([q]) == Delta("qZ", (q, z, end))
    assert output.push([z, x, q]) == Delta("", (q, z, x), "qZx")


def test_a_character_in_parts_comes_with_its_last_token(letters: Tokenizer) -> None:
    output = Output(letters)
    parts = encode(letters, "ខ")
    assert len(parts) == 3
    assert [output.push([part]) for part in parts] == [Delta(), Delta(), Delta("ខ", tuple(parts))]


def test_an_end_token_is_an_id_without_text(letters: Tokenizer) -> None:
    output = Output(letters)
    q, z = encode(letters, "q") + encode(letters, "Z")
    assert output.push([q, z], ends=True) == Delta("q", (q, z))
    assert output.finish() == Delta()


def test_finish_lets_everything_go(letters: Tokenizer) -> None:
    output = Output(letters, ["qZ"])
    tokens = (*encode(letters, "Zq"), encode(letters, "ខ")[0])
    assert output.push(tokens) == Delta("Z", tokens[:1])
    assert output.finish() == Delta("q\ufffd", tokens[1:])


def test_finish_gives_back_what_was_no_stop_after_all(letters: Tokenizer) -> None:
    output = Output(letters, ["qZ"])
    q = encode(letters, "q")[0]
    assert output.push([q]) == Delta() and output.finish() == Delta("q", (q,))


def test_characters_released_at_the_end_do_not_come_twice(tmp_path: Path) -> None:
    """A run of bytes that ended a stream is undecided again on replay, until the next token shows where it ends."""
    tokenizer = Tokenizer(write_folder(tmp_path, sentencepiece_tokenizer()))
    run_of_bytes = tuple(OutputToken(5 + byte) for byte in "ខ".encode())
    e, n = (OutputToken(tokenizer.encode_text(letter, False)[-1]) for letter in "EN")
    first = Output(tokenizer, ["END"])
    assert first.push(run_of_bytes) == Delta() and first.finish() == Delta("ខ", run_of_bytes)
    second = Output(tokenizer, ["END"])
    assert second.replay(run_of_bytes) is None
    assert second.push([e]) == Delta()
    assert second.push([n, n]) == Delta("ENN", (e, n, n))


def test_min_tokens_makes_stop_strings_ordinary_text(letters: Tokenizer) -> None:
    output = Output(letters, ["q"], min_tokens=2)
    q = encode(letters, "q")[0]
    assert output.push([q, q, q, q]) == Delta("qq", (q, q, q), "q")


def test_nothing_follows_the_end(letters: Tokenizer) -> None:
    output = Output(letters, ["q"])
    assert output.push(encode(letters, "q")).stop == "q"
    with pytest.raises(AssertionError):
        output.push(encode(letters, "Z"))
    with pytest.raises(AssertionError):
        output.finish()
