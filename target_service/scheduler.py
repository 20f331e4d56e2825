"""Which sessions take part in the next step, and with how many tokens. Policy only: no tensors, no blocks.

Decoding sessions come first, oldest first; prompts fill what is left of the token budget in chunks, so a long prompt
delays nobody for longer than one step. A session that waits for candidates sits the step out; how long the others wait
for it, and whether all that are ready go at once, `turns` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from target_service.patience import Patience
from target_service.session import TargetSession
from target_service.turns import Turns

GATHER_SHARE = 0.1  # of the last step's time: how long ready sessions wait for those about to be ready
BEHIND_SHARE = 0.8  # of a step's time has passed before one is begun behind it that others might still join
GATHER_SLACK = 1.25  # times the usual latency of candidates, where all wait for candidates together


@dataclass(frozen=True, slots=True)
class Share:
    """One session's part of a step: uncomputed tokens to feed, then candidates to verify."""

    session: TargetSession
    feed_count: int
    candidate_count: int
    draws: bool  # false for a chunk of a prompt that is not its last

    def now(self) -> Share:
        """The same share, without tokens that were found in the cache since it was cut."""
        pending = self.session.sequence.pending_length
        feed = min(self.feed_count, pending)
        return Share(self.session, feed, self.candidate_count, feed == pending)


class Scheduler:
    """Chooses shares under a token budget. Times are monotonic seconds."""

    def __init__(self, patience: Patience, max_batch_tokens: int) -> None:
        self.patience = patience
        self.max_batch_tokens = max_batch_tokens
        self._turns = Turns()
        self._last_step_s = 0.0
        self._first_ready: float | None = None

    def choose(self, sessions: Sequence[TargetSession], now: float) -> list[Share] | float | None:
        """The next step's shares; or the time at which to ask again; or None until something arrives."""
        live = [session for session in sessions if session.room > 0]
        if not live:
            return None
        ready: list[TargetSession] = []
        held: list[TargetSession] = []
        wake = math.inf
        for session in live:
            until = self._held_until(session, len(live), now)
            (ready if until <= now else held).append(session)
            wake = min(wake, until if until > now else math.inf)
        if not ready:
            self._first_ready = None
            return wake
        if self._first_ready is None:
            self._first_ready = now
        if held and now < (gather_until := self._gather_until(self._first_ready, ready, held)):
            return min(wake, gather_until)
        self._first_ready = None
        return self._share_out(self._turn(ready, held), self.max_batch_tokens)

    def choose_behind(
        self, sessions: Sequence[TargetSession], running: int, started: float, now: float, budget: int
    ) -> list[Share] | float | None:
        """As `choose`, of sessions without a part in the step that runs since `started`, in which `running` speculate.

        Nobody runs out of patience meanwhile. Those that live by candidates go only where they take turns; elsewhere
        they are to meet those of the running step again.
        """
        others = [session for session in sessions if session.room > 0]
        ready = [s for s in others if not s.speculating or (s.has_full_draft and self._turns.halved)]
        if not ready:
            return None
        held = [session for session in others if session not in ready]
        speculating = sum(session.speculating for session in ready)
        whole = speculating == len(ready) and speculating >= self._turns.size(running + speculating + len(held))
        due = started + BEHIND_SHARE * self._last_step_s
        if (held or running) and not whole and now < due:
            return due
        return self._share_out(self._turn(ready, held, running), budget)

    def _gather_until(self, first_ready: float, ready: Sequence[TargetSession], held: Sequence[TargetSession]) -> float:
        """Until when those that are ready wait for those that are held.

        Not long, where some could go on without candidates, and not at all where half of them is a step. Where a step
        is for all, groups that arrived apart are joined.
        """
        until = first_ready + GATHER_SHARE * self._last_step_s
        if not all(session.speculating for session in ready):
            return until
        if len(ready) >= self._turns.size(len(ready) + len(held)):
            return first_ready
        latency = self.patience.latency_s
        if self._turns.halved or latency is None or latency > self._last_step_s:
            return until
        expected = max(session.idle_since for session in held) + GATHER_SLACK * latency
        return max(until, min(expected, first_ready + self._last_step_s))

    def _turn(self, ready: list[TargetSession], held: Sequence[TargetSession], running: int = 0) -> list[TargetSession]:
        """Those that are ready; of those that live by candidates no more than a step is for, the longest idle first."""
        speculating = [session for session in ready if session.speculating]
        size = self._turns.size(running + len(speculating) + len(held))
        if len(speculating) <= size:
            return ready
        left_out = sorted(speculating, key=lambda session: session.idle_since)[size:]
        return [session for session in ready if session not in left_out]

    def note_arrival(self, session: TargetSession, now: float) -> None:
        """Learns, once a round, when a session's candidates are complete."""
        if not session.ready_noted and session.speculating and session.has_full_draft and len(session.candidates):
            session.ready_noted = True
            self.patience.record_arrival(now - session.idle_since)
            self._turns.record_latency(self.patience.latency_s)

    def record_step(self, shares: Sequence[Share], seconds: float) -> None:
        """Learns from a finished step."""
        self._last_step_s = seconds
        if all(share.draws and share.feed_count == 1 for share in shares):
            drafted = sum(share.candidate_count > 0 for share in shares)
            if drafted:
                self._turns.record_step(seconds)
            if drafted in (0, len(shares)):
                self.patience.record_step(len(shares), drafted > 0, seconds)

    def _held_until(self, session: TargetSession, batch_size: int, now: float) -> float:
        """Until when a session sits out for the sake of its candidates; the past if it does not."""
        if not session.speculating:
            return now
        if session.has_full_draft:
            self.note_arrival(session, now)  # they may have been there when the round began
            return now
        until = session.idle_since + self.patience.seconds(batch_size, session.rounds_since_wait)
        if until > now:
            session.waited = True
        elif session.waited:
            session.waited = False
            self.patience.record_expiry(now - session.idle_since)
        return until

    def _share_out(self, ready: Iterable[TargetSession], budget: int) -> list[Share]:
        shares: list[Share] = []
        for session in sorted(ready, key=lambda session: (session.prefilling, session.arrival)):
            if budget <= 0:
                break
            feed = min(session.sequence.pending_length, budget)
            draws = feed == session.sequence.pending_length
            drafted = min(len(session.candidates), session.wanted_candidates, budget - feed) if draws else 0
            shares.append(Share(session, feed, drafted, draws))
            budget -= feed + drafted
        return shares
