"""Proposes what followed the last time the text ended like this: the n-gram half of `ngram+model`, for measuring only.

The drafter that serves lives in the draft service; this one exists so that training depends on no service.
"""

from __future__ import annotations

from collections.abc import Iterable

_SHORTEST, _LONGEST = 3, 16


class NgramDrafter:
    """An index of all n-grams of the shortest length; longer matches are found by looking back from there."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            if len(self._tokens) >= _SHORTEST:
                self._ends.setdefault(tuple(self._tokens[-_SHORTEST:]), []).append(len(self._tokens))

    def propose(self, count: int) -> list[int]:
        """Up to `count` tokens after the longest earlier match, the latest of equals; empty without one."""
        ends = self._ends.get(tuple(self._tokens[-_SHORTEST:]), [])[:-1]
        if not ends:
            return []
        best = max(ends, key=lambda end: (self._common(end), end))
        return self._tokens[best : best + count]

    def _common(self, end: int) -> int:
        """How many tokens before `end` equal those at the end of the text."""
        length, size = 0, len(self._tokens)
        while length < min(_LONGEST, end) and self._tokens[end - 1 - length] == self._tokens[size - 1 - length]:
            length += 1
        return length
