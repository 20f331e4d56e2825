"""Turns a stream of token ids into a stream of text that never splits a character.

The text of all pushes and the flush is what decoding all ids at once gives. Two ways: byte-level vocabularies (most of
today's) go through an incremental UTF-8 decoder, all others through a small window of tokens that is decoded anew.
The library's own DecodeStream is not used: on bytes that are not UTF-8, which a sampled model does produce, it drops
text or raises. Stop strings are `gateway.stop_strings`'s business.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from gateway.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"

# A run of byte tokens decodes differently once a later byte breaks it, so it is held to its end. Beyond this many
# tokens its whole characters are let go all the same: a script that the vocabulary lacks must still stream.
_LONGEST_HOLD = 64
_LONGEST_CHARACTER = 4  # bytes


class Detokenizer(Protocol):
    """The state of one stream. What it holds, and the work for one token, are bounded."""

    @property
    def pending(self) -> bool:
        """Whether a token that was pushed has text still to come."""
        ...

    def push(self, token_id: int) -> str:
        """The text that this token completes; special tokens have none."""
        ...

    def peek(self) -> str:
        """What flush would return now."""
        ...

    def flush(self) -> str:
        """The text still held, as decoding gives it when nothing follows."""
        ...


def make_detokenizer(tokenizer: Tokenizer) -> Detokenizer:
    """A fresh detokenizer of the kind that the tokenizer needs."""
    return ByteDetokenizer(tokenizer) if tokenizer.byte_level else WindowDetokenizer(tokenizer)


class ByteDetokenizer:
    """For byte-level vocabularies: tokens are bytes, and only the tail of a character is ever held."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def pending(self) -> bool:
        return bool(self._tail())

    def push(self, token_id: int) -> str:
        if self._tokenizer.is_skipped(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def peek(self) -> str:
        return self._tail().decode("utf-8", "replace")

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _tail(self) -> bytes:
        return self._decoder.getstate()[0]


class WindowDetokenizer:
    """For all other vocabularies: decodes the tokens held behind one token of context.

    The context tells the decoder that it is not at the start of the text, where it may strip a space or leave one
    out. One token is enough for that. It is never a byte token, which would join the run of bytes behind it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []  # none before the first text, else one token
        self._context_length = 0  # characters
        self._held: list[int] = []

    @property
    def pending(self) -> bool:
        return bool(self._held)

    def push(self, token_id: int) -> str:
        if self._tokenizer.is_skipped(token_id):
            return ""
        self._held.append(token_id)
        if self._in_run(token_id):
            return ""
        text = self.peek()
        if text.endswith(_REPLACEMENT) and len(self._held) < _LONGEST_HOLD + _LONGEST_CHARACTER:
            return ""
        self._release()
        return text

    def peek(self) -> str:
        if not self._held:
            return ""
        return self._tokenizer.decode(self._context + self._held)[self._context_length :]

    def flush(self) -> str:
        text = self.peek()
        if self._held:
            self._release()
        return text

    def _in_run(self, token_id: int) -> bool:
        return len(self._held) < _LONGEST_HOLD and self._tokenizer.is_byte(token_id)

    def _release(self) -> None:
        spelt = (token_id for token_id in reversed(self._held) if self._gives_context(token_id))
        context = next(spelt, None)
        if context is None and not self._context:  # only bytes so far; any token of another kind will do
            context = next(filter(self._gives_context, range(self._tokenizer.vocabulary_size)), None)
        if context is not None:
            self._context = [context]
            self._context_length = len(self._tokenizer.decode(self._context))
        self._held.clear()

    def _gives_context(self, token_id: int) -> bool:
        tokenizer = self._tokenizer
        return not (tokenizer.is_skipped(token_id) or tokenizer.is_byte(token_id)) and tokenizer.piece(token_id) != ""
