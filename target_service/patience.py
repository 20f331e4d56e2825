"""How long the target may wait for candidates before a session's next step.

Waiting pays while the time it costs is less than what the candidates save: with `gain` tokens committed by a round
that has candidates, such a round may take `gain` plain steps. What is measured is global to the service (step times by
batch size, gain, how late candidates come), so it survives sessions. Policy only; it holds no session.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SMOOTHING = 0.1  # weight of a new measurement
PROBE_EVERY = 64  # rounds after which a draft that always came too late is waited for once
SLACK = 1.5  # how much longer than expected
EXPECTED_GAIN = 2.5  # tokens a round, before much is measured; a few bad rounds at the start must not decide


class Average:
    """An exponentially weighted mean; without a value to start from, None before the first."""

    __slots__ = ("value",)

    def __init__(self, value: float | None = None) -> None:
        self.value = value

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + SMOOTHING * (value - self.value)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Measured step times of one batch size, in seconds."""

    plain: Average
    verify: Average


class Patience:
    """Learns from steps and arrivals; answers how long a session may wait, in seconds, at most `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._times: dict[int, StepTimes] = {}
        self._gain = Average(EXPECTED_GAIN)
        self._latency = Average()

    @property
    def latency_s(self) -> float | None:
        """How long after a verdict a session's candidates usually come; None before any came."""
        return self._latency.value

    def record_step(self, batch_size: int, with_candidates: bool, seconds: float) -> None:
        """A step without prefill took this long."""
        times = self._times_of(batch_size)
        (times.verify if with_candidates else times.plain).add(seconds)

    def record_round(self, committed: int) -> None:
        """A round that had candidates committed so many tokens."""
        self._gain.add(committed)

    def record_arrival(self, seconds: float) -> None:
        """A session's candidates were complete so long after its last verdict."""
        self._latency.add(seconds)

    def record_expiry(self, waited_s: float) -> None:
        """A session waited in vain: candidates take longer than that."""
        if self._latency.value is None or self._latency.value < 2 * waited_s:
            self._latency.add(2 * waited_s)

    def seconds(self, batch_size: int, rounds_since_wait: int) -> float:
        """How long a session may wait; zero where candidates are known to come too late to pay.

        Where waiting pays it may last somewhat longer than candidates usually take: a wait that ends just before they
        come is the dearest of all. Where they come a little late the gateway, which measures what speculation brings,
        is the better judge, so only clear lateness counts here.
        """
        step, worth, latency = self._step(batch_size), self._worth(batch_size), self._latency.value
        if latency is None:
            return min(worth, self._limit_s)
        if latency <= SLACK * worth:
            return min(max(worth, SLACK * latency), self._limit_s)
        if rounds_since_wait >= PROBE_EVERY:  # at the cost of a step at most, however late they were
            return min(max(worth, min(SLACK * latency, step)), self._limit_s)
        return 0.0

    def _worth(self, batch_size: int) -> float:
        """What a round with candidates saves over plain ones, once they are there."""
        times, step = self._times_of(batch_size), self._step(batch_size)
        assert self._gain.value is not None
        if math.isinf(step):
            return step
        return max(0.0, self._gain.value * step - (times.verify.value if times.verify.value is not None else step))

    def _step(self, batch_size: int) -> float:
        """A plain step's time, or the nearest thing known to it; infinite before any."""
        times = self._times_of(batch_size)
        known = times.plain.value if times.plain.value is not None else times.verify.value
        return math.inf if known is None else known

    def _times_of(self, batch_size: int) -> StepTimes:
        return self._times.setdefault(batch_size.bit_length(), StepTimes(Average(), Average()))
