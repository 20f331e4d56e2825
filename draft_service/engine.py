"""The draft's bookkeeping: opens sessions, reconciles commits, asks the drafter for tokens and sends candidates.

It knows no gRPC and calls no model: entries come in as messages, steps go out as values that a worker executes, and
time is an argument. So the same code runs in the service and in a simulated network.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draft_service.drafters.drafter import Drafter, Proposal
from draft_service.session import DraftSession, DraftStream, Gap, Run
from forerun.config import MAX_WINDOW
from forerun.errors import InvalidArgument
from forerun.runtime.admission import (
    check_epoch,
    check_round_index,
    check_session,
    check_token_ids,
    checked_sampling,
)
from forerun.runtime.sequence import Sequence as TokenSequence
from forerun.runtime.session_table import SessionTable, Standing
from forerun.v1 import draft_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What the draft model and the operator allow. Zero: no limit."""

    vocabulary_size: int
    context_length: int
    end_token_ids: tuple[int, ...]
    max_sessions: int
    min_confidence: float = 0.0  # see DraftSession


@dataclass(frozen=True, slots=True)
class Part:
    """One session's part of a step, and what it looked like when the step was planned."""

    session: DraftSession
    epoch: int
    head: int


@dataclass(frozen=True, slots=True)
class Step:
    """What a worker executes. Outcome: one proposal for each part."""

    parts: tuple[Part, ...]
    batch: Any  # the drafter's own
    started: float  # monotonic seconds
    started_unix_ns: int


class DraftTrace(Protocol):
    """Where the engine tells what was drafted. See `draft_service.tracing`."""

    def draft(self, session: DraftSession, run: Run, candidates: draft_pb2.Candidates) -> None:
        """Candidates were sent; `run` is how they came about."""


class DraftEngine:
    """All sessions of all gateways. `handle`, `plan`, `complete` and `fail` are called from one thread."""

    def __init__(self, limits: DraftLimits, drafter: Drafter, trace: DraftTrace) -> None:
        self.limits = limits
        self.stats = types_pb2.ServiceStats(total_blocks=drafter.total_blocks)
        self.sessions: SessionTable[DraftSession] = SessionTable(lambda session: drafter.forget(session.sequence))
        self._drafter = drafter
        self._trace = trace

    def read_stats(self) -> types_pb2.ServiceStats:
        """Counters and gauges, now."""
        self.sessions.fill(self.stats)
        self.stats.used_blocks = self._drafter.used_blocks
        self.stats.reused_prompt_tokens = self._drafter.reused_tokens
        return self.stats

    # Entries

    def handle(self, stream: DraftStream, entry: draft_pb2.DraftRequestEntry, now: float) -> None:
        """Applies one entry. A bad one detaches its session, nothing else."""
        standing = self.sessions.standing(stream, entry.session_id, entry.attachment)
        kind = entry.WhichOneof("entry")
        try:
            if standing is Standing.STALE:
                self.stats.stale_entries += 1
            elif kind == "open":
                self._open(stream, entry, standing, now)
            elif kind == "close":
                self.sessions.close_number(stream, entry.session_id)
            elif standing is Standing.UNKNOWN:
                self.stats.stale_entries += 1
                stream.send(_entry(entry, unknown_session=types_pb2.UnknownSession()))
            else:
                self._apply(stream.sessions[entry.session_id], entry, kind)
        except InvalidArgument as error:
            self._detach(stream, entry, draft_pb2.DETACH_REASON_INVALID, error.message)

    def _apply(self, session: DraftSession, entry: draft_pb2.DraftRequestEntry, kind: str | None) -> None:
        if kind == "advance":
            self._commit(session, entry, entry.advance, 0)
        elif kind == "rollback":
            self._commit(session, entry, entry.rollback, entry.rollback.refuted_epoch)
        elif kind == "configure":
            check_session([0], [], entry.configure.draft_length, 0)
            session.draft_length = entry.configure.draft_length
            session.window = min(entry.configure.window, MAX_WINDOW)
            if session.sendable:  # as much as is wanted now was drafted before
                self._send(session)

    def _open(self, stream: DraftStream, entry: draft_pb2.DraftRequestEntry, standing: Standing, now: float) -> None:
        message, limits = entry.open, self.limits
        length = len(message.prompt_token_ids) + len(message.output_token_ids)
        if standing is Standing.CURRENT:  # a repeated entry
            self.stats.stale_entries += 1
        elif entry.session_id not in stream.sessions and len(self.sessions) >= limits.max_sessions:
            detail = f"all {limits.max_sessions} sessions are taken"
            self._detach(stream, entry, draft_pb2.DETACH_REASON_CAPACITY, detail)
        elif limits.context_length and length >= limits.context_length:
            detail = f"{length} tokens leave no room in a context of {limits.context_length}"
            self._detach(stream, entry, draft_pb2.DETACH_REASON_CONTEXT_LENGTH, detail)
        else:
            self.sessions.add(self._new_session(stream, entry, now))

    def _new_session(self, stream: DraftStream, entry: draft_pb2.DraftRequestEntry, now: float) -> DraftSession:
        message, limits = entry.open, self.limits
        prompt, output = list(message.prompt_token_ids), list(message.output_token_ids)
        check_session(prompt, output, message.draft_length, limits.vocabulary_size)
        check_epoch("refuted_epoch", message.refuted_epoch)
        check_round_index(message.round_index)
        params = checked_sampling(message.sampling, limits.vocabulary_size)
        length_limit = len(prompt) + params.max_tokens
        committed_length = len(prompt) + len(output)
        return DraftSession(
            stream=stream,
            session_id=entry.session_id,
            attachment=entry.attachment,
            params=params,
            prompt_length=len(prompt),
            sequence=TokenSequence(prompt + output),
            committed_length=committed_length,
            length_limit=min(length_limit, limits.context_length) if limits.context_length else length_limit,
            end_token_ids=params.ends(limits.end_token_ids),
            draft_length=message.draft_length,
            window=min(message.window, MAX_WINDOW),
            epoch=message.refuted_epoch + 1,
            round_index=message.round_index,
            traceparent=message.traceparent,
            expires_at=now + message.time_to_live_ms / 1000 if message.time_to_live_ms else None,
            sent_length=committed_length,
            run=Run(),
            min_confidence=limits.min_confidence,
        )

    def _commit(
        self,
        session: DraftSession,
        entry: draft_pb2.DraftRequestEntry,
        commit: draft_pb2.Advance | draft_pb2.Rollback,
        refuted_epoch: int,
    ) -> None:
        token_ids = list(commit.token_ids)
        check_token_ids("token_ids", token_ids, self.limits.vocabulary_size)
        check_epoch("refuted_epoch", refuted_epoch)
        check_round_index(commit.round_index)
        try:
            truncated = session.commit(commit.start_position, token_ids, refuted_epoch)
        except Gap:
            session.stream.send(_entry(entry, need_open=draft_pb2.NeedOpen(committed_length=session.committed_length)))
            return
        if truncated:
            self.stats.rollbacks += 1
            self._drafter.truncated(session.sequence)
        session.round_index = max(session.round_index, commit.round_index)
        if self.limits.context_length and session.committed_length >= self.limits.context_length:
            self._detach(session.stream, entry, draft_pb2.DETACH_REASON_CONTEXT_LENGTH, "the context is full")
        elif session.exhausted and session.sendable:
            self._send(session)

    # Steps

    def plan(self, now: float) -> Step | float | None:
        """The next step; or the time to ask again; or None to be asked after the next entry."""
        for session in self.sessions:
            if session.expires_at is not None and session.expires_at <= now:
                self.sessions.close(session)
        wanting = {id(session.sequence): session for session in self.sessions if session.wanted}
        if not wanting:
            return self._next_expiry()
        batch, refused = self._drafter.plan([session.want for session in wanting.values()])
        for want in refused:
            session = wanting.pop(id(want.sequence))
            self._detach_session(session, draft_pb2.DETACH_REASON_CAPACITY, "the cache is full")
        if not wanting:
            return self._next_expiry()
        parts = tuple(Part(session, session.epoch, session.head) for session in wanting.values())
        return Step(parts, batch, now, time.time_ns())

    def plan_ahead(self, step: Step, now: float) -> None:
        """Nothing: which tokens are wanted next depends on those that are drafted."""

    def _next_expiry(self) -> float | None:
        return min((s.expires_at for s in self.sessions if s.expires_at is not None), default=None)

    def complete(self, step: Step, outcome: Sequence[Proposal], now: float) -> None:
        """Takes proposals as far as they still hold: no rollback came meanwhile, and commits agree with them."""
        self.stats.steps += 1
        for part, proposal in zip(step.parts, outcome, strict=True):
            session = part.session
            if session.closed:
                continue
            run = session.run
            run.started_unix_ns = run.started_unix_ns or step.started_unix_ns
            run.draft_ns += round((now - step.started) * 1e9)
            run.steps += proposal.steps
            since = session.sequence.token_ids[part.head :]  # committed meanwhile
            still = proposal.after(since) if session.epoch == part.epoch else None
            if still is None:
                self.stats.stale_entries += 1
                continue
            session.draft(still)
            if session.sendable:
                self._send(session)
        self._drafter.settle(step.batch, outcome)

    def fail(self, step: Step, error: Exception, now: float) -> None:
        """Lets go of the sessions of a step that raised."""
        for part in step.parts:
            if not part.session.closed:
                self.stats.failed_sessions += 1
                self._detach_session(part.session, draft_pb2.DETACH_REASON_FAILED, f"the drafter failed: {error}")

    def _send(self, session: DraftSession) -> None:
        run = session.run
        candidates = session.take_unsent()
        self.stats.drafted_tokens += len(candidates.token_ids)
        self._trace.draft(session, run, candidates)
        session.stream.send(_entry(session, candidates=candidates))

    # Ends

    def _detach(
        self,
        stream: DraftStream,
        entry: draft_pb2.DraftRequestEntry,
        reason: draft_pb2.DetachReason,
        detail: str,
    ) -> None:
        self.sessions.close_number(stream, entry.session_id)
        stream.send(_entry(entry, detached=draft_pb2.Detached(reason=reason, detail=detail)))

    def _detach_session(self, session: DraftSession, reason: draft_pb2.DetachReason, detail: str) -> None:
        self.sessions.close(session)
        session.stream.send(_entry(session, detached=draft_pb2.Detached(reason=reason, detail=detail)))


def _entry(identity: DraftSession | draft_pb2.DraftRequestEntry, **content: Any) -> draft_pb2.DraftResponseEntry:
    return draft_pb2.DraftResponseEntry(session_id=identity.session_id, attachment=identity.attachment, **content)
