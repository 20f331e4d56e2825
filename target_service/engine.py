"""The target's bookkeeping: opens sessions, plans steps over the paged cache, turns draws into verdicts.

It knows no gRPC and calls no model: entries come in as messages, steps go out as values that a worker executes, and
time is an argument. So the same code runs in the service and in a simulated network.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.candidates import CandidateBuffer
from forerun.config import MAX_WINDOW
from forerun.errors import InvalidArgument
from forerun.runtime.admission import (
    check_epoch,
    check_round_index,
    check_session,
    check_token_ids,
    checked_sampling,
)
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.sampling import Draw
from forerun.runtime.sequence import Sequence as TokenSequence
from forerun.runtime.session_table import SessionTable, Standing
from forerun.v1 import target_pb2, types_pb2
from target_service.scheduler import Scheduler, Share
from target_service.session import TargetSession, TargetStream
from target_service.step import Part, Step, freeze, freeze_ahead
from target_service.verdict import VerifyTrace, judge

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, INTERNAL = 3, 8, 13  # google.rpc.Code
BLOCKED_RETRY_S = 0.005


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """What the model and the operator allow."""

    vocabulary_size: int  # width of the logits
    context_length: int  # tokens of one session; must fit the cache
    end_token_ids: tuple[int, ...]
    max_sessions: int


class TargetEngine:
    """All sessions of all gateways. All methods are called from one thread.

    `overlaps` says that a step begun before the last one's end pays: see `plan_ahead`.
    """

    def __init__(
        self, limits: TargetLimits, cache: KvCache, scheduler: Scheduler, trace: VerifyTrace, overlaps: bool = False
    ) -> None:
        self.limits = limits
        self.stats = types_pb2.ServiceStats(total_blocks=cache.block_count)
        self.sessions: SessionTable[TargetSession] = SessionTable(lambda session: cache.release(session.sequence))
        self._cache = cache
        self._scheduler = scheduler
        self._trace = trace
        self._overlaps = overlaps
        self._last_end = 0.0  # of a step; monotonic seconds
        self._arrivals = itertools.count()

    def read_stats(self) -> types_pb2.ServiceStats:
        """Counters and gauges, now."""
        self.sessions.fill(self.stats)
        self.stats.used_blocks = self._cache.used_blocks
        self.stats.reused_prompt_tokens = self._cache.reused_tokens
        return self.stats

    # Entries

    def handle(self, stream: TargetStream, entry: target_pb2.TargetRequestEntry, now: float) -> None:
        """Applies one entry. A bad one fails its session, nothing else."""
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
                self._say_unknown(stream, entry)
            else:
                self._apply(stream.sessions[entry.session_id], entry, kind, now)
        except InvalidArgument as error:
            self._fail_entry(stream, entry, INVALID_ARGUMENT, error.message)

    def _apply(
        self, session: TargetSession, entry: target_pb2.TargetRequestEntry, kind: str | None, now: float
    ) -> None:
        if kind == "candidates":
            self._offer(session, entry.candidates)
            self._scheduler.note_arrival(session, now)
        elif kind == "configure":
            self._configure(session, entry.configure)

    def _open(self, stream: TargetStream, entry: target_pb2.TargetRequestEntry, standing: Standing, now: float) -> None:
        if standing is Standing.CURRENT:  # a repeated entry
            self.stats.stale_entries += 1
        elif entry.session_id not in stream.sessions and len(self.sessions) >= self.limits.max_sessions:
            self._fail_entry(stream, entry, RESOURCE_EXHAUSTED, f"all {self.limits.max_sessions} sessions are taken")
        else:
            self.sessions.add(self._new_session(stream, entry, now))

    def _new_session(self, stream: TargetStream, entry: target_pb2.TargetRequestEntry, now: float) -> TargetSession:
        message, limits = entry.open, self.limits
        prompt, output = list(message.prompt_token_ids), list(message.output_token_ids)
        check_session(prompt, output, message.draft_length, limits.vocabulary_size)
        check_round_index(message.round_index)
        params = checked_sampling(message.sampling, limits.vocabulary_size)
        length_limit = min(len(prompt) + params.max_tokens, limits.context_length)
        if len(prompt) + len(output) >= length_limit:
            raise InvalidArgument(
                "prompt_token_ids",
                f"{len(prompt)} prompt and {len(output)} output tokens leave no room below {length_limit}",
            )
        return TargetSession(
            stream=stream,
            session_id=entry.session_id,
            attachment=entry.attachment,
            arrival=next(self._arrivals),
            params=params,
            prompt_length=len(prompt),
            sequence=TokenSequence(prompt + output),
            length_limit=length_limit,
            end_token_ids=params.ends(limits.end_token_ids),
            candidates=CandidateBuffer(MAX_WINDOW),
            commit_limit=message.commit_limit,
            draft_length=message.draft_length,
            round_index=message.round_index,
            traceparent=message.traceparent,
            expires_at=now + message.time_to_live_ms / 1000 if message.time_to_live_ms else None,
            idle_since=now,
        )

    def _offer(self, session: TargetSession, offer: target_pb2.OfferCandidates) -> None:
        token_ids = list(offer.token_ids)
        check_token_ids("token_ids", token_ids, self.limits.vocabulary_size)
        check_epoch("epoch", offer.epoch)
        taken = session.candidates.offer(
            offer.epoch, offer.start_position, token_ids, offer.exhausted, session.sequence.token_ids
        )
        self.stats.stale_entries += not taken

    def _configure(self, session: TargetSession, change: target_pb2.ConfigureTarget) -> None:
        if change.HasField("draft_length"):
            check_session([0], [], change.draft_length, 0)
            session.draft_length = change.draft_length
        if change.HasField("commit_limit"):
            session.commit_limit = max(session.commit_limit, change.commit_limit)

    # Steps

    def plan(self, now: float) -> Step | float | None:
        """The next step; or the time to ask again; or None to be asked after the next entry."""
        for session in self.sessions:
            if session.expired(now):
                self.sessions.close(session)
            elif session.room > 0:
                self._cache.attach_prefix(session.sequence)
        chosen = self._scheduler.choose(list(self.sessions), now)
        if chosen is None or isinstance(chosen, float):
            return self._or_expiry(chosen)
        preempted: set[TargetSession] = set()
        placed = [self._place(share, preempted) for share in chosen if share.session not in preempted]
        shares = tuple(share for share in placed if share is not None and share.session not in preempted)
        if not shares:  # the cache belongs to older sessions that wait for candidates, which is soon over
            return now + BLOCKED_RETRY_S
        return freeze(shares, self.limits.end_token_ids, now)

    def plan_ahead(self, step: Step, now: float) -> Step | float | None:
        """A step to begin behind one that runs: its plain sessions' next tokens, and others that are ready.

        A plain session that the running step ends takes part for nothing; what its row writes is beyond what others
        read. Nobody is pushed out of the cache for it.
        """
        if not self._overlaps or not step.bare or any(session.expired(now) for session in self.sessions):
            return None
        going = [(row, part) for row, part in step.plain_rows() if part.session.room > 1 and not part.session.closed]
        inside = {part.session for part in step.parts}
        others = [session for session in self.sessions if session not in inside]
        for session in others:
            if session.room > 0:
                self._cache.attach_prefix(session.sequence)
        chosen = self._scheduler.choose_behind(
            others,
            sum(bool(part.candidates) for part in step.parts),
            max(step.started, self._last_end),
            now,
            self._scheduler.max_batch_tokens - len(going),
        )
        if isinstance(chosen, float) and not going:
            return chosen
        shares = chosen if isinstance(chosen, list) else []
        lengths = [(part.session, part.session.committed_length + 1) for _, part in going]
        lengths += [(share.session, share.session.committed_length + share.candidate_count) for share in shares]
        if not lengths or not all(self._cache.reserve(session.sequence, length) for session, length in lengths):
            return None  # what was reserved goes with the session's next commit
        return freeze_ahead(going, [share.now() for share in shares], self.limits.end_token_ids, now)

    def _or_expiry(self, wake: float | None) -> float | None:
        times = [session.expires_at for session in self.sessions if session.expires_at is not None]
        if wake is not None:
            times.append(wake)
        return min(times, default=None)

    def _place(self, share: Share, preempted: set[TargetSession]) -> Share | None:
        """Finds cache blocks for a share, at the cost of paused and younger sessions; None if there are none to take.

        A prompt's blocks are taken whole with its first chunk, so that a sequence once begun is not pushed out
        again by the next chunk of another.
        """
        session = share.session
        while not self._cache.reserve(session.sequence, len(session.sequence) + share.candidate_count):
            victim = self._victim(session, preempted)
            if victim is None:
                return None
            self._cache.release(victim.sequence)
            preempted.add(victim)
            self.stats.preemptions += 1
            self._cache.attach_prefix(session.sequence)
        return share.now()

    def _victim(self, session: TargetSession, preempted: set[TargetSession]) -> TargetSession | None:
        """Whose cache to take: the youngest of those whose client does not read, else the youngest of the younger."""
        holders = [s for s in self.sessions if s.sequence.block_table and s is not session and s not in preempted]
        paused = [s for s in holders if s.room <= 0]
        younger = [s for s in holders if s.arrival > session.arrival]
        return next(iter(paused[-1:] or younger[-1:]), None)

    def complete(self, step: Step, outcome: Sequence[Sequence[Draw]], now: float) -> None:
        """Turns a step's draws into verdicts. Sessions closed meanwhile are passed over."""
        self.stats.steps += 1
        step, self._last_end = step.begun(self._last_end), now
        self._scheduler.record_step(step.shares, now - step.started)
        draws = iter(outcome)
        for part in step.parts:
            drawn = next(draws) if part.draw is not None else None
            if part.session.closed:
                continue
            if drawn is None:
                sequence = part.session.sequence
                sequence.mark_computed(part.forward.start + len(part.forward.token_ids))
                self._cache.register(sequence, len(sequence))
                self._trace.prefill(part, step)
            else:
                self._commit(part, drawn, step, now)

    def _commit(self, part: Part, drawn: Sequence[Draw], step: Step, now: float) -> None:
        session = part.session
        sequence = session.sequence
        verdict = judge(part, drawn, now - step.started, len(step.parts))
        computed = len(sequence) + verdict.accepted_count
        sequence.append(verdict.token_ids)
        sequence.mark_computed(min(computed, len(sequence) - 1))
        self._cache.truncate(sequence, len(sequence))
        self._cache.register(sequence, len(sequence))
        session.candidates.commit(verdict.token_ids)
        self._count(verdict)
        self._trace.verify(part, step, verdict)
        entry = target_pb2.TargetResponseEntry(
            session_id=session.session_id, attachment=session.attachment, verdict=verdict
        )
        if verdict.finish_reason:
            self.sessions.close(session)
        else:
            self._begin_round(session, bool(part.candidates), now)
        session.stream.send(entry)

    def _begin_round(self, session: TargetSession, had_candidates: bool, now: float) -> None:
        session.round_index += 1
        session.idle_since = now
        session.rounds_since_wait = 0 if had_candidates or session.waited else session.rounds_since_wait + 1
        session.waited = False
        session.ready_noted = False

    def _count(self, verdict: target_pb2.Verdict) -> None:
        self.stats.rounds += 1
        self.stats.drafted_tokens += verdict.drafted_count
        self.stats.accepted_tokens += verdict.accepted_count
        self.stats.committed_tokens += len(verdict.token_ids)
        if verdict.drafted_count:
            self._scheduler.patience.record_round(len(verdict.token_ids))

    def fail(self, step: Step, error: Exception, now: float) -> None:
        """Ends the sessions of a step that raised."""
        self._last_end = now
        for part in step.parts:
            if not part.session.closed:
                self._fail(part.session, INTERNAL, f"the step failed: {error}")

    # Ends

    def _fail(self, session: TargetSession, code: int, detail: str) -> None:
        self.sessions.close(session)
        self._send_failed(session.stream, session.session_id, session.attachment, code, detail)

    def _fail_entry(self, stream: TargetStream, entry: target_pb2.TargetRequestEntry, code: int, detail: str) -> None:
        if self.sessions.standing(stream, entry.session_id, entry.attachment) is not Standing.STALE:
            self.sessions.close_number(stream, entry.session_id)
        self._send_failed(stream, entry.session_id, entry.attachment, code, detail)

    def _send_failed(self, stream: TargetStream, session_id: int, attachment: int, code: int, detail: str) -> None:
        self.stats.failed_sessions += 1
        failed = target_pb2.SessionFailed(code=code, detail=detail)
        stream.send(target_pb2.TargetResponseEntry(session_id=session_id, attachment=attachment, failed=failed))

    def _say_unknown(self, stream: TargetStream, entry: target_pb2.TargetRequestEntry) -> None:
        self.stats.stale_entries += 1
        stream.send(
            target_pb2.TargetResponseEntry(
                session_id=entry.session_id, attachment=entry.attachment, unknown_session=types_pb2.UnknownSession()
            )
        )
