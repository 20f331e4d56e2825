"""Chooses the draft length: the one that commits most tokens a second at the present load, which may be none.

What a draft length costs depends on the machine and on how many sessions share a step; what it brings depends on pair
and text. Both are measured on the rounds themselves: time a round by load and length, tokens a round by length. All
sessions use the same length for a slice of rounds, so that each slice measures what it really costs, waiting and the
draft's own use of the machine included. Other lengths, plain decoding among them, are probed now and then, the more
seldom the more often the probe was in vain. Policy only: it knows no session and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun.config import MAX_DRAFT_LENGTH, ConfigError, GatewayConfig
from gateway.round import Round

SLICE_ROUNDS = 12  # rounds of each running session
PLAIN_SLICE_ROUNDS = 4  # a plain round has only its time to tell
PROBE_EVERY = 32  # slices, while probes change something
PROBE_SELDOM = 256  # slices, once they do not
TIME_WEIGHT = 0.1  # of a new round's time
TOKEN_WEIGHT = 0.03  # of a new round's tokens: text varies more than time
OUTLIER = 3.0  # a round longer than this many times the mean tells of a prompt or a pause, not of its length
BETTER = 1.02  # how much better another length must be


@dataclass(slots=True)
class Load:
    """What was measured at one load. Loads are powers of two of running sessions."""

    round_s: dict[int, float] = field(default_factory=dict)  # by draft length
    best: int | None = None
    slices_to_probe: int = PROBE_EVERY
    probe_interval: int = PROBE_EVERY
    probed: dict[int, int] = field(default_factory=dict)  # by draft length, the slice in which it was last tried


class Controller:
    """Measures rounds and chooses the draft length for all sessions that leave it to the gateway."""

    def __init__(self, draft_length: int) -> None:
        self._lengths = [length for length in (0, 1, 2, 3, 4, 6, 8, 12, 16) if length < draft_length] + [draft_length]
        self._tokens = {length: 1.0 + 0.5 * min(length, 3) for length in self._lengths}
        self._loads: dict[int, Load] = {}
        self._slice = 0
        self._rounds = 0
        self.draft_length = draft_length

    def record(self, finished: Round, running: int) -> bool:
        """Learns from a round while `running` sessions decode; true if the draft length changes with it."""
        load = self._loads.setdefault(running.bit_length(), Load())
        self._rounds += 1
        if self._rounds > 2 * running:  # the first ones of a slice still carry the last length
            self._measure(load, finished)
        rounds = SLICE_ROUNDS if self.draft_length or load.best == 0 else PLAIN_SLICE_ROUNDS
        if self._rounds < (2 + rounds) * running:
            return False
        self._rounds = 0
        self._slice += 1
        chosen = self._choose(load)
        load.probed[chosen] = self._slice
        changed, self.draft_length = chosen != self.draft_length, chosen
        return changed

    def _measure(self, load: Load, finished: Round) -> None:
        seconds = max(finished.ended_unix_ns - finished.started_unix_ns, 1) / 1e9
        known = load.round_s.get(self.draft_length)
        if known is None:
            load.round_s[self.draft_length] = seconds
        else:
            load.round_s[self.draft_length] += TIME_WEIGHT * (min(seconds, OUTLIER * known) - known)
        for length in self._lengths:  # a shorter draft would have kept the first of the same candidates
            if 0 < length <= self.draft_length:
                committed = 1 + min(finished.accepted_count, length)
                self._tokens[length] += TOKEN_WEIGHT * (committed - self._tokens[length])

    def _choose(self, load: Load) -> int:
        unknown = [length for length in (self._lengths[-1], 0) if length not in load.round_s]
        if unknown:
            return unknown[0]
        best = max(self._lengths, key=lambda length: self._speed(load, length))
        if load.best is not None and self._speed(load, best) < BETTER * self._speed(load, load.best):
            best = load.best
        load.probe_interval = PROBE_EVERY if best != load.best else load.probe_interval
        load.best = best
        load.slices_to_probe -= 1
        if load.slices_to_probe > 0:
            return best
        load.probe_interval = min(2 * load.probe_interval, PROBE_SELDOM)
        load.slices_to_probe = load.probe_interval
        return self._probe(load, best)

    def _probe(self, load: Load, best: int) -> int:
        """The neighbour of the best, or plain decoding, whichever was not tried for longest."""
        at = self._lengths.index(best)
        others = {0, *self._lengths[max(0, at - 1) : at + 2]} - {best}
        return min(others, key=lambda length: load.probed.get(length, -1))

    def _speed(self, load: Load, length: int) -> float:
        """Tokens a second."""
        return self._tokens[length] / self._round_s(load.round_s, length)

    @staticmethod
    def _round_s(measured: dict[int, float], length: int) -> float:
        """A round's time; for a length that was not measured, on the line between its measured neighbours."""
        if length in measured:
            return measured[length]
        below = max(known for known in measured if known < length)
        above = min(known for known in measured if known > length)
        share = (length - below) / (above - below)
        return measured[below] + share * (measured[above] - measured[below])


@dataclass(frozen=True, slots=True)
class LengthTable:
    """Draft lengths by hand: (sessions from which it holds, draft length), ascending."""

    rows: tuple[tuple[int, int], ...]

    @classmethod
    def parse(cls, text: str) -> LengthTable:
        """Reads "1:4,4:2,9:0". Raises ValueError that says what is wrong."""
        rows = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            running, colon, length = part.partition(":")
            if not (colon and running.isdigit() and length.isdigit()):
                raise ValueError(f"{part!r} is not SESSIONS:DRAFT_LENGTH, as in 1:4,4:2,9:0")
            rows.append((int(running), int(length)))
        if rows != sorted(set(rows)):
            raise ValueError("the numbers of sessions must ascend")
        if rows and max(length for _, length in rows) > MAX_DRAFT_LENGTH:
            raise ValueError(f"draft lengths must be at most {MAX_DRAFT_LENGTH}")
        return cls(tuple(rows))

    def length(self, running: int) -> int | None:
        """The draft length for a load; None below the first row."""
        lengths = [length for from_, length in self.rows if running >= from_]
        return lengths[-1] if lengths else None


class DraftLengths:
    """The gateway's draft length, by hand where the operator set one, else by measuring."""

    def __init__(self, config: GatewayConfig) -> None:
        try:
            self._table = LengthTable.parse(config.draft_length_by_batch)
        except ValueError as error:
            raise ConfigError(f"draft_length_by_batch: {error}") from None
        self._disable_above = config.disable_above
        self._configured = config.draft_length
        self._controller = Controller(config.draft_length) if config.adaptive == "on" else None

    def now(self, running: int) -> int:
        """The draft length while `running` sessions decode."""
        if self._disable_above and running > self._disable_above:
            return 0
        by_hand = self._table.length(running)
        if by_hand is not None:
            return by_hand
        return self._controller.draft_length if self._controller is not None else self._configured

    def record(self, finished: Round, running: int) -> bool:
        """Learns from a round; true if the draft length may have changed."""
        by_hand = self._table.length(running) is not None or 0 < self._disable_above < running
        return self._controller is not None and not by_hand and self._controller.record(finished, running)
