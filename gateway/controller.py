"""Chooses the draft length: the one that commits most tokens a second at the present load, which may be none.

What a draft length costs depends on the machine and on how many sessions share a step; what it brings depends on pair
and text. Both are measured on the rounds themselves: time a round by load and length, tokens a round by length. All
sessions use the same length for a slice of rounds, so that each slice measures what it really costs, waiting and the
draft's own use of the machine included; what other rounds take longer is counted apart (`surcharge`).
Other lengths, plain decoding among them, are probed now and then, and what probes lose is kept to a hundredth of the
time. Policy only: it knows no session and no clock.
"""

from __future__ import annotations

import logging
import statistics
from dataclasses import dataclass, field

from forerun.logs import event
from gateway.round import Round
from gateway.surcharge import Surcharge

logger = logging.getLogger(__name__)

SLICE_ROUNDS = 12  # measured rounds of a slice, over all sessions, and
SESSION_ROUNDS = 4  # of each session at least
PLAIN_ROUNDS = 16  # of each session in a plain slice: all is held against it, and measuring it longer costs nothing
SETTLING_ROUNDS = 2  # of each session after a change: they still carry the last length
SETTLING_PLAIN = 6  # and the draft, which may compute on for a while, is to be done with it
CATCH_UP_ROUNDS = 12  # of each session, in which a draft that was let go of may compute what it missed
LONGEST_SLICE = 4  # times as many rounds, if most share their steps with prompts, which makes them longer
OUTLIER = 3.0  # a round longer than this many times the median tells of a pause, not of its length
PROBE_EVERY = 8  # slices at least
FIRST_PROBE = 50  # after so many times the time that the first choice took
PROBE_SHARE = 0.01  # of the time may be lost to probes
TOKEN_WEIGHT = 0.03  # of a new round's tokens at least; at first all rounds count alike, and
PRIOR_ROUNDS = 4  # what is assumed before them counts as so many
BETTER = 1.02  # how much better another draft length must be; plain decoding wins a tie
WORTH = 1.08  # how much better than plain decoding one must look to begin with: a slice or two may flatter it


@dataclass(slots=True)
class Load:
    """What was measured at one load, and the slice under way. A load is a power of two of sessions and what is near.

    Seconds are those of rounds, summed over all sessions.
    """

    key: int  # see _load_key
    length: int  # in force
    best: int | None = None
    round_s: dict[int, float] = field(default_factory=dict)  # by draft length
    plain: Surcharge = field(default_factory=Surcharge)
    drafted: Surcharge = field(default_factory=Surcharge)
    rounds: int = 0  # of the slice, without settling
    seconds: list[float] = field(default_factory=list)  # of those that shared no step with a prompt
    spent_s: float = 0.0  # by the slice, settling included
    committed: int = 0  # by the slice, settling included
    learning_s: float = 0.0  # until the first choice
    slices_to_probe: int = PROBE_EVERY
    probed: dict[int, int] = field(default_factory=dict)  # by draft length, the slice in which it was last tried

    def surcharge(self, length: int) -> Surcharge:
        """What rounds of this draft length take longer than the quiet ones."""
        return self.drafted if length else self.plain

    def begin_slice(self) -> None:
        """Forgets what belongs to the slice under way."""
        self.seconds.clear()
        self.rounds, self.spent_s, self.committed = 0, 0.0, 0


def _load_key(running: int) -> int:
    """The logarithm of the number of sessions to base 2, rounded.

    Rounded, not cut off: loads are kept up by so many clients, often a power of two of them, and between one's answer
    and its next request there is a session less. Were that another load, with another draft length, all would change
    theirs with every request, and a draft that was let go of would have to catch up each time.
    """
    return ((2 * running * running).bit_length() - 1) // 2 if running else 0


class Controller:
    """Measures rounds and chooses the draft length for all sessions that leave it to the gateway."""

    def __init__(self, draft_length: int) -> None:
        self._lengths = [length for length in (0, 1, 2, 3, 4, 6, 8, 12, 16) if length < draft_length] + [draft_length]
        self._tokens = {length: 1.0 + 0.5 * min(length, 3) for length in self._lengths}
        self._seen = dict.fromkeys(self._lengths, PRIOR_ROUNDS)  # rounds behind each figure in _tokens
        self._loads: dict[int, Load] = {}
        self._total_s = 0.0  # of all rounds at all loads
        self._probe_at_s = 0.0  # of _total_s, no probe before
        self._slices = 0
        self._used = -1  # by the last round
        self._settling = self._catching_up = 0  # rounds that are not measured yet

    def draft_length(self, running: int) -> int:
        """The draft length while `running` sessions decode."""
        return self._load(running).length

    def record(self, finished: Round, running: int, beside_prompt: bool = False) -> bool:
        """Learns from a round while `running` sessions decode; true if the draft length changes with it.

        `beside_prompt`: a prompt was computed meanwhile, so the round's time is not that of its length.
        """
        load = self._load(running)
        seconds = max(finished.ended_unix_ns - finished.started_unix_ns, 1) / 1e9
        load.spent_s += seconds
        self._total_s += seconds
        if load.best is None:
            load.learning_s += seconds
        load.committed += finished.accepted_count + 1
        if load.length in load.round_s:
            tokens = finished.accepted_count + 1
            load.surcharge(load.length).add(tokens, seconds, tokens / self._quiet_speed(load, load.length))
        if not self._settled(load, finished, running):
            return False
        load.rounds += 1
        if not beside_prompt:
            load.seconds.append(seconds)
        self._count_tokens(finished, load.length)
        enough = max(SLICE_ROUNDS, SESSION_ROUNDS * running) if load.length else PLAIN_ROUNDS * running
        if len(load.seconds) < enough and load.rounds < LONGEST_SLICE * enough:
            return False
        before = load.length
        self._end_slice(load)
        event(
            logger,
            "draft_length_chosen",
            level=logging.DEBUG,
            sessions=running,
            draft_length=load.length,
            best=load.best,
            round_ms={length: round(seconds * 1e3, 1) for length, seconds in sorted(load.round_s.items())},
            tokens_a_round={length: round(tokens, 2) for length, tokens in self._tokens.items()},
            surcharge={"plain": round(load.plain.factor, 2), "drafted": round(load.drafted.factor, 2)},
        )
        return load.length != before

    def _load(self, running: int) -> Load:
        """What is known of a load; one at which nothing was measured yet does what is best at the nearest."""
        key = _load_key(running)
        load = self._loads.setdefault(key, Load(key, self._lengths[-1]))
        if not load.round_s:
            length = next((near.best for near in self._nearest(key) if near.best is not None), load.length)
            if length != load.length:
                load.length = length
                load.begin_slice()
        return load

    def _nearest(self, key: int) -> list[Load]:
        """The other loads, the most similar one first."""
        others = (load for load in self._loads.values() if load.key != key)
        return sorted(others, key=lambda load: abs(load.key - key))

    def _settled(self, load: Load, finished: Round, running: int) -> bool:
        """Whether the round shows what its length costs, and not the change to it."""
        if load.length != self._used:
            self._used = load.length
            self._settling = (SETTLING_ROUNDS if load.length else SETTLING_PLAIN) * running
            self._catching_up = CATCH_UP_ROUNDS * running
        if self._settling <= 0 or self._catching_up <= 0:
            return True
        self._settling -= load.length == 0 or finished.drafted_count > 0
        self._catching_up -= 1
        return False

    def _count_tokens(self, finished: Round, used: int) -> None:
        for length in self._lengths:  # a shorter draft would have kept the first of the same candidates
            if 0 < length <= used:
                committed = 1 + min(finished.accepted_count, length)
                self._seen[length] += 1
                weight = max(TOKEN_WEIGHT, 1 / self._seen[length])
                self._tokens[length] += weight * (committed - self._tokens[length])

    def _end_slice(self, load: Load) -> None:
        """Notes what a round took, and begins the next slice."""
        if load.seconds:
            longest = OUTLIER * statistics.median(load.seconds)
            took = statistics.fmean(min(seconds, longest) for seconds in load.seconds)
        else:
            took = load.round_s.get(load.length, load.spent_s / load.rounds)
        load.round_s[load.length] = (took + load.round_s.get(load.length, took)) / 2
        self._slices += 1
        load.probed[load.length] = self._slices
        if load.best is not None and load.length != load.best:  # it was a probe
            lost_s = load.spent_s - load.committed / self._speed(load, load.best)
            self._probe_at_s = max(self._probe_at_s, self._total_s + lost_s / PROBE_SHARE)
            load.slices_to_probe = PROBE_EVERY
        load.length = self._choose(load)
        load.begin_slice()

    def _choose(self, load: Load) -> int:
        if 0 not in load.round_s:
            return 0
        best = max(self._lengths, key=lambda length: self._speed(load, length))
        if load.best is not None and best and self._speed(load, best) < BETTER * self._speed(load, load.best):
            best = load.best
        worth = BETTER if load.best else WORTH
        if best and self._speed(load, best) < worth * self._speed(load, 0):
            best = 0
        if load.best is None:
            self._probe_at_s = max(self._probe_at_s, self._total_s + FIRST_PROBE * load.learning_s)
        load.best = best
        load.slices_to_probe -= 1
        if load.slices_to_probe > 0 or self._total_s < self._probe_at_s:
            return best
        at = self._lengths.index(best)
        others = {0, *self._lengths[max(0, at - 1) : at + 2]} - {best}
        return min(others, key=lambda length: load.probed.get(length, -1))

    def _speed(self, load: Load, length: int) -> float:
        """Tokens a second of one session, all told."""
        return self._quiet_speed(load, length) / load.surcharge(length).factor

    def _quiet_speed(self, load: Load, length: int) -> float:
        """The same by the rounds that are measured."""
        return self._tokens[length] / self._round_s(load, length)

    def _round_s(self, load: Load, length: int) -> float:
        """A round's time, for a length that was not measured as far as can be told from those that were.

        Between two lengths it lies on the line between them; beyond, it is as many times a plain round as elsewhere.
        """
        measured = load.round_s
        if length in measured:
            return measured[length]
        below = max(known for known in measured if known < length)
        above = min((known for known in measured if known > length), default=None)
        if above is not None:
            share = (length - below) / (above - below)
            return measured[below] + share * (measured[above] - measured[below])
        elsewhere = self._elsewhere(load, length)
        return measured[below] if elsewhere is None else max(measured[below], elsewhere * measured[0])

    def _elsewhere(self, load: Load, length: int) -> float | None:
        """How many plain rounds one with this draft length takes, at the most similar load that knows."""
        for other in self._nearest(load.key):
            if 0 in other.round_s and max(other.round_s) >= length:
                return self._round_s(other, length) / other.round_s[0]
        return None
