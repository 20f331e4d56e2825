"""The text of a stream equals the text of all its ids, never splits a character, and costs bounded work."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.detokenizer import ByteDetokenizer, WindowDetokenizer, make_detokenizer
from gateway.tokenizer import Tokenizer
from tests.gateway.small_tokenizers import (
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    wordpiece_tokenizer,
    write_folder,
)

BUILDERS = {
    "byte_level": byte_level_tokenizer,
    "llama": sentencepiece_tokenizer,
    "metaspace": lambda: sentencepiece_tokenizer("metaspace"),
    "wordpiece": wordpiece_tokenizer,
}
TEXT = "Hello world 你好 😀😀 héllo END"


@pytest.fixture(scope="module", params=BUILDERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return Tokenizer(write_folder(folder, BUILDERS[request.param]()))


def random_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    whole = st.integers(0, tokenizer.vocabulary_size + 2)  # two ids past the end: padded logits
    low = st.integers(0, min(300, tokenizer.vocabulary_size))  # special tokens and bytes, made frequent
    written = st.text("Hello wörld你😀é\ufffd \n", max_size=8).map(lambda text: tokenizer.encode_text(text, True))
    return st.lists(st.one_of(whole.map(lambda i: [i]), low.map(lambda i: [i]), written), max_size=12).map(
        lambda parts: [token_id for part in parts for token_id in part][:60]
    )


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_deltas_join_to_what_decode_gives(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(random_ids(tokenizer))
    detokenizer = make_detokenizer(tokenizer)
    deltas = [detokenizer.push(token_id) for token_id in ids]
    peeked, was_pending = detokenizer.peek(), detokenizer.pending
    flushed = detokenizer.flush()
    assert "".join(deltas) + flushed == tokenizer.decode(ids)
    assert peeked == flushed
    assert was_pending or not flushed
    assert not detokenizer.pending and detokenizer.flush() == ""


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_text_is_settled_where_nothing_is_pending(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(random_ids(tokenizer))
    detokenizer = make_detokenizer(tokenizer)
    text = ""
    for count, token_id in enumerate(ids, start=1):
        text += detokenizer.push(token_id)
        if not detokenizer.pending:
            assert text == tokenizer.decode(ids[:count])


def test_whole_characters_only(tokenizer: Tokenizer) -> None:
    if isinstance(make_detokenizer(tokenizer), WindowDetokenizer) and not tokenizer.is_byte(10):
        pytest.skip("no bytes in this vocabulary")
    detokenizer = make_detokenizer(tokenizer)
    deltas = [detokenizer.push(token_id) for token_id in tokenizer.encode_text(TEXT, False)]
    assert "\ufffd" not in "".join(deltas)
    assert sum(bool(delta) for delta in deltas) > 5, "text must come as it is made, not at the end"
    assert "".join(deltas) + detokenizer.flush() == TEXT


def test_byte_level_lets_broken_bytes_go_at_once(tokenizer: Tokenizer) -> None:
    if not tokenizer.byte_level:
        pytest.skip("byte-level only")
    detokenizer = ByteDetokenizer(tokenizer)
    broken = next(i for i in range(tokenizer.vocabulary_size) if tokenizer.token_bytes(i) == b"\xff")
    assert [detokenizer.push(broken) for _ in range(3)] == ["\ufffd"] * 3


def test_a_script_made_of_bytes_still_streams(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_folder(tmp_path, sentencepiece_tokenizer()))
    text = "ខ្មែរ" * 60
    ids = [tokenizer._parsing.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]
    detokenizer = make_detokenizer(tokenizer)
    deltas, held = [], 0
    for token_id in ids:
        deltas.append(detokenizer.push(token_id))
        held = 0 if deltas[-1] else held + 1
        assert held < 68
    assert "".join(deltas) + detokenizer.flush() == text


def test_the_first_word_after_a_long_run_of_bytes_keeps_its_space(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_folder(tmp_path, sentencepiece_tokenizer()))
    byte, word = tokenizer._parsing.token_to_id("<0x41>"), tokenizer._parsing.token_to_id("▁Hello")
    detokenizer = make_detokenizer(tokenizer)
    assert "".join(map(detokenizer.push, [*[byte] * 64, word])) == "A" * 64 + " Hello"


def test_work_for_a_token_does_not_grow(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0
    decode = tokenizer.decode

    def measured(ids: list[int], skip_special_tokens: bool = True) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids, skip_special_tokens)

    monkeypatch.setattr(tokenizer, "decode", measured)
    detokenizer = make_detokenizer(tokenizer)
    for n in range(3000):
        detokenizer.push(n * 7919 % tokenizer.vocabulary_size)
    assert longest <= 1 + 68
