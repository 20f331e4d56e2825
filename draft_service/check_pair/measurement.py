"""What was measured of a pair, and what follows from it by arithmetic: the time of a round against plain steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from draft_service.check_pair.rounds import Tally

NGRAM, MODEL, BOTH = "ngram", "model", "ngram+model"  # drafters
WIRE_MS = 1.5  # what a round costs beside its steps, all services on one machine; docs/log.md


@dataclass(frozen=True, slots=True)
class Expectation:
    """One drafter at one draft length."""

    drafter: str
    draft_length: int
    mean_accepted_length: float
    ratio: float  # times as fast as plain decoding, one request at a time


@dataclass(frozen=True, slots=True)
class Measurement:
    """A pair on one machine.

    draft_length   the one that is asked about
    tallies        by drafter, then by draft length; without a draft model only the lookup's
    verify_ms      the target's step by how many tokens it is given; 1 is a plain step
    draft_ms       the draft model's step for one token; None without one
    unsteadiness   the slower quarter of a kind of step over its quicker quarter, where that is largest; 1 is a quiet
                   machine
    """

    draft_length: int
    tallies: Mapping[str, Mapping[int, Tally]]
    verify_ms: Mapping[int, float]
    draft_ms: float | None
    unsteadiness: float = 1.0
    wire_ms: float = WIRE_MS

    @property
    def asked(self) -> Tally:
        """The rounds of the draft model, else of the lookup, at the draft length in question."""
        return self.tallies[MODEL if MODEL in self.tallies else NGRAM][self.draft_length]

    @property
    def plain_ms(self) -> float:
        """A step of plain decoding."""
        return self.verify_ms[1]

    def verify(self, tokens: int) -> float:
        """The target's step for so many tokens, between the measured ones in a straight line."""
        sizes = sorted(self.verify_ms)
        above = sizes[min(bisect_left(sizes, tokens), len(sizes) - 1)]
        if above <= tokens:
            return self.verify_ms[above]
        below = max(size for size in sizes if size < tokens)
        share = (tokens - below) / (above - below)
        return self.verify_ms[below] * (1 - share) + self.verify_ms[above] * share

    def ratio(self, tally: Tally, draft_ms: float | None = None) -> float:
        """How many times as fast as plain decoding these rounds are; `draft_ms` in the place of the measured one."""
        step = draft_ms if draft_ms is not None else self.draft_ms or 0.0
        drafted = tally.modelled + tally.looked_up
        spent = (
            tally.modelled * tally.draft_length * step
            + drafted * (self.verify(tally.draft_length + 1) + self.wire_ms)
            + (tally.rounds - drafted) * self.plain_ms
        )
        return tally.committed * self.plain_ms / spent if spent else 1.0

    def expectations(self) -> list[Expectation]:
        """Every drafter at every draft length."""
        return [
            Expectation(drafter, length, tally.mean_accepted_length, self.ratio(tally))
            for drafter, by_length in self.tallies.items()
            for length, tally in by_length.items()
        ]
