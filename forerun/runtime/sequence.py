"""One session's tokens as a model service holds them, and how far the cache has followed.

A sequence is bookkeeping only: no torch, no sampling, no protocol. It can always be rebuilt from its tokens. The
event loop alone changes it; the forward pass is given an immutable copy (`ForwardSlice`). Which blocks are free is
`KvCache`'s business: the block table below is written by it and read by others.
"""

from __future__ import annotations

from collections.abc import Iterable


class Sequence:
    """Token ids, the cache blocks behind them, and how many of them are computed.

    token_ids         prompt and output, candidates included
    computed_length   the first so many tokens have their keys and values in the cache; never above len(token_ids)
    block_table       cache blocks in token order; block i holds tokens i * block_size .. (i + 1) * block_size
    """

    __slots__ = ("block_table", "computed_length", "token_ids")

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self.token_ids: list[int] = list(token_ids)
        self.computed_length = 0
        self.block_table: list[int] = []

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"Sequence({len(self)} tokens, {self.computed_length} computed, {len(self.block_table)} blocks)"

    @property
    def pending_length(self) -> int:
        """How many tokens at the end still have to go through the model."""
        return len(self.token_ids) - self.computed_length

    def append(self, token_ids: Iterable[int]) -> None:
        """Add tokens at the end; they are not computed yet."""
        self.token_ids.extend(token_ids)

    def mark_computed(self, length: int) -> None:
        """Record that a forward pass has put keys and values up to `length` tokens into the cache."""
        assert self.computed_length <= length <= len(self.token_ids), (self, length)
        self.computed_length = length

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on. Blocks stay until `KvCache.truncate` takes them back."""
        assert 0 <= length <= len(self.token_ids), (self, length)
        del self.token_ids[length:]
        self.computed_length = min(self.computed_length, length)
