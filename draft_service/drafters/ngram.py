"""Prompt lookup: proposes what followed the last occurrence of the session's latest tokens. No weights, any vocabulary.

The longest match wins, the most recent one among equals. A match that runs into the end of the tokens goes on over
what it proposes, so repetition is followed for as long as it lasts.
Source of the idea: Saxena, "Prompt lookup decoding", 2023; n-gram lengths as in vLLM's `prompt_lookup_min/max`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from draft_service.drafters.drafter import Proposal, Want
from forerun.runtime.sequence import Sequence as TokenSequence

Batch = list[tuple[tuple[int, ...], int]]  # tokens, most


class NgramDrafter:
    """Looks for the last `longest` to `shortest` tokens in everything before them."""

    def __init__(self, shortest: int, longest: int) -> None:
        assert 1 <= shortest <= longest, (shortest, longest)
        self._shortest = shortest
        self._longest = longest

    @property
    def total_blocks(self) -> int:
        return 0

    @property
    def used_blocks(self) -> int:
        return 0

    @property
    def reused_tokens(self) -> int:
        return 0

    def plan(self, wants: Sequence[Want]) -> tuple[Batch, Sequence[Want]]:
        return [(tuple(want.sequence.token_ids), want.most) for want in wants], ()

    def execute(self, batch: Batch) -> list[Proposal]:
        return [self._propose(token_ids, most) for token_ids, most in batch]

    def settle(self, batch: Batch, proposals: Sequence[Proposal]) -> None:
        """Nothing is cached."""

    def truncated(self, sequence: TokenSequence) -> None:
        """Nothing is cached."""

    def forget(self, sequence: TokenSequence) -> None:
        """Nothing is cached."""

    def _propose(self, token_ids: tuple[int, ...], most: int) -> Proposal:
        source = self._continuation(token_ids)
        if source is None:
            return Proposal((), exhausted=True)
        tokens = list(token_ids[source:])
        period = len(tokens)
        while len(tokens) < most:
            tokens.append(tokens[len(tokens) - period])
        return Proposal(tuple(tokens[:most]))

    def _continuation(self, token_ids: tuple[int, ...]) -> int | None:
        """Where the tokens begin that followed the best match, or None."""
        haystack = array("I", token_ids)
        data, width = haystack.tobytes(), haystack.itemsize
        for length in range(min(self._longest, len(token_ids) - 1), self._shortest - 1, -1):
            at = _last_aligned(data, data[-length * width :], width)
            if at is not None:
                return at + length
        return None


def _last_aligned(data: bytes, pattern: bytes, width: int) -> int | None:
    """The last item index at which `pattern` occurs before the end of `data`, or None."""
    end = len(data) - width  # the tail itself is no match
    while (at := data.rfind(pattern, 0, end)) >= 0:
        if at % width == 0:
            return at // width
        end = at + len(pattern) - 1
    return None
