"""Whether sessions that live by candidates share every step, or take turns in two halves. Policy only, of no session.

With steps of S seconds and candidates that come L seconds after a verdict, a round of all takes S + L, and the target
waits for L of it. In halves a round takes two steps, or S + L if that is more, and the target verifies the candidates
of one half while those of the other are drafted. A smaller batch has shorter steps and earlier candidates, so what was
split is joined again only where candidates take clearly less than a step.
"""

from __future__ import annotations

from target_service.patience import Average

HALVE_ABOVE = 1.0  # candidates take so many times a step
JOIN_BELOW = 0.6


class Turns:
    """Learns from steps with candidates and from arrivals; says how many sessions make a step."""

    def __init__(self) -> None:
        self.halved = False
        self._step = Average()

    def record_step(self, seconds: float) -> None:
        """A step that verified candidates took this long."""
        self._step.add(seconds)

    def record_latency(self, seconds: float | None) -> None:
        """Candidates usually come so long after a verdict."""
        step = self._step.value
        if seconds is None or step is None:
            return
        if seconds > HALVE_ABOVE * step:
            self.halved = True
        elif seconds < JOIN_BELOW * step:
            self.halved = False

    def size(self, sessions: int) -> int:
        """How many of the sessions that live by candidates make a step."""
        return -(-sessions // 2) if self.halved else sessions
