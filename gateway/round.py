"""One finished round as the gateway saw it, and what many of them add up to. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Round:
    """What a verdict said, beside what the gateway knew of the candidates."""

    index: int
    draft_token_ids: tuple[int, ...]  # the verified candidates; empty if they were replaced meanwhile
    committed_token_ids: tuple[int, ...]
    drafted_count: int
    accepted_count: int
    epoch: int
    refuted: bool  # a candidate contradicted a committed token
    started_unix_ns: int
    ended_unix_ns: int
    step_ns: int
    wait_ns: int
    draft_ns: int
    batch_size: int

    def cut(self, length: int) -> Round:
        """The round with only its first `length` committed tokens: a stop string was complete with the last of them."""
        if length >= len(self.committed_token_ids):
            return self
        return replace(
            self,
            committed_token_ids=self.committed_token_ids[:length],
            accepted_count=min(self.accepted_count, length),
            refuted=False,  # that was beyond the end
        )


@dataclass(slots=True)
class SpeculationTally:
    """Sums over the rounds of one request, as far as its client was told of them."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    rollbacks: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)

    def add(self, finished: Round) -> None:
        """Counts a round."""
        self.rounds += 1
        self.drafted += finished.drafted_count
        self.accepted += finished.accepted_count
        self.committed += len(finished.committed_token_ids)
        self.rollbacks += finished.refuted
        while len(self.drafted_per_position) < finished.drafted_count:
            self.drafted_per_position.append(0)
            self.accepted_per_position.append(0)
        for position in range(finished.drafted_count):
            self.drafted_per_position[position] += 1
            self.accepted_per_position[position] += position < finished.accepted_count

    @property
    def mean_accepted_length(self) -> float:
        """Committed tokens a round; 0 without rounds."""
        return self.committed / self.rounds if self.rounds else 0.0
