"""The interface that every drafter has, and the values it trades with the engine.

A drafter guesses tokens for many sequences at once. It owns no sessions and no protocol: the engine says which
sequences want tokens, a worker executes, and the engine decides whether the guesses still hold. `execute` runs on the
worker and sees frozen values only; everything else runs on the event loop and may change a sequence's cache, also
while the worker executes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forerun.runtime.sequence import Sequence as TokenSequence
from forerun.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Want:
    """One sequence that wants up to `most` more tokens, at least 1; fewer if one ends it or is too unlikely to hold."""

    sequence: TokenSequence
    params: SamplingParams
    prompt_length: int
    most: int
    end_token_ids: frozenset[int] = frozenset()  # nothing is wanted after these
    min_confidence: float = 0.0  # nor once the product of the confidences is below this
    committed_length: int = 0  # so many tokens are final, candidates follow; the prompt is final in any case


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a drafter offers for one want. Without tokens and not exhausted: it needs another step."""

    token_ids: tuple[int, ...]
    exhausted: bool = False  # nothing to add until more is committed
    confidences: tuple[float, ...] = ()  # for each token the drafter's probability of it, 0..1; empty: not known
    steps: int = 0  # of a model; zero for a drafter without weights

    def after(self, token_ids: Sequence[int]) -> Proposal | None:
        """What is left of it once these were committed; None if it said something else, or no more than these."""
        known = len(token_ids)
        if known == 0:
            return self
        if known >= len(self.token_ids) or self.token_ids[:known] != tuple(token_ids):
            return None
        return Proposal(self.token_ids[known:], False, self.confidences[known:], self.steps)


class Drafter(Protocol):
    """Proposes tokens."""

    @property
    def total_blocks(self) -> int:
        """Cache blocks in all; 0 without a cache."""

    @property
    def used_blocks(self) -> int:
        """Cache blocks in use."""

    @property
    def reused_tokens(self) -> int:
        """Tokens found in the cache instead of being computed, since the start."""

    def plan(self, wants: Sequence[Want]) -> tuple[Any, Sequence[Want]]:
        """A batch for `execute`, and the wants for which there is no room at all."""

    def execute(self, batch: Any) -> list[Proposal]:
        """The proposals for a batch: one for each want that was planned, in order."""

    def settle(self, batch: Any, proposals: Sequence[Proposal]) -> None:
        """Notes what an executed batch left in the cache. Sequences took its proposals, or have changed otherwise."""

    def truncated(self, sequence: TokenSequence) -> None:
        """A sequence lost tokens at its end."""

    def forget(self, sequence: TokenSequence) -> None:
        """A sequence is gone. Safe to repeat."""
