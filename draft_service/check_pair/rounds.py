"""Rounds from what is known at each position: how many candidates a drafter would offer there, and how many are right.

Every committed token is the target's own, so it is known beforehand what a drafter is asked after; a round begins where
the one before it ended. No models here, and no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

LONGEST = 8  # candidates of the longest draft that is tried


@dataclass(frozen=True, slots=True)
class Guess:
    """What a drafter says if a round begins at a position."""

    offered: int  # candidates, up to LONGEST; 0 is a plain round
    right: int  # how many of them, from the first on, are the target's tokens
    by_model: bool  # it took steps of a model


Track = Sequence[Guess]
"""One output: a guess for the position of each of its tokens."""


@dataclass(slots=True)
class Tally:
    """Counts over rounds. A candidate after the last token of an output is compared with nothing and not counted."""

    draft_length: int
    committed: int = 0
    rounds: int = 0
    modelled: int = 0  # rounds with a model's candidates
    looked_up: int = 0  # rounds with candidates that cost no step
    compared: list[int] = field(default_factory=list)  # by position in the draft
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.compared, self.accepted = [0] * self.draft_length, [0] * self.draft_length

    @property
    def mean_accepted_length(self) -> float:
        """Committed tokens a round."""
        return self.committed / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> list[float]:
        """By position: the share of candidates accepted, all before them being so too."""
        return [right / of if of else 0.0 for right, of in zip(self.accepted, self.compared, strict=True)]

    def add(self, track: Track) -> None:
        """Plays the rounds of one output."""
        position = 0
        while position < len(track):
            guess = track[position]
            offered = min(guess.offered, self.draft_length, len(track) - position)
            right = min(guess.right, offered)
            for at in range(offered):
                self.compared[at] += 1
                self.accepted[at] += at < right
            self.modelled += guess.by_model
            self.looked_up += not guess.by_model and guess.offered > 0
            self.rounds += 1
            position += right + 1
        self.committed += len(track)


def play(tracks: Iterable[Track], draft_length: int) -> Tally:
    """The rounds of all outputs at one draft length."""
    tally = Tally(draft_length)
    for track in tracks:
        tally.add(track)
    return tally


def matching(candidates: Sequence[int], truth: Sequence[int]) -> int:
    """The length of the common beginning."""
    count = 0
    while count < min(len(candidates), len(truth)) and candidates[count] == truth[count]:
        count += 1
    return count


def from_flags(flags: Sequence[bool]) -> list[Guess]:
    """A model's track, from whether its draw after each of the target's tokens was the target's next."""
    runs = [0] * (len(flags) + 1)
    for at in reversed(range(len(flags))):
        runs[at] = runs[at + 1] + 1 if flags[at] else 0
    return [Guess(LONGEST, min(run, LONGEST), True) for run in runs[:-1]]


def first_of(lookup: Track, model: Track) -> list[Guess]:
    """The track of a drafter that asks the model only where the lookup finds nothing."""
    return [found if found.offered else asked for found, asked in zip(lookup, model, strict=True)]
