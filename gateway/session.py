"""One generation as the gateway owns it: what is committed, what is proposed, and what each service makes of it.

This is the gateway's half of the protocol, without network and without clocks of its own. Events go in (`on_...`);
what has to be said to the services is asked of `target` and `draft`; what the client may see is handed to `listener`.
The committed tokens here are the truth: a service that is lost or confused is opened again from them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.candidates import CandidateBuffer
from forerun.config import MAX_EPOCH, MAX_WINDOW
from forerun.errors import ForerunError, Internal, InvalidArgument, Overloaded
from forerun.sampling_params import SamplingParams
from forerun.v1 import draft_pb2, target_pb2, types_pb2
from gateway.draft_side import DraftSide
from gateway.round import Round
from gateway.target_side import TargetSide

INVALID_ARGUMENT, RESOURCE_EXHAUSTED = 3, 8  # google.rpc.Code
DRAFT_RETRY_S = 2.0  # before a session that a draft let go of is offered to one again
MAX_DRAFT_REOPENS = 16  # in a row without a candidate, before that counts as letting go
MAX_DRAFT_NS = 3_600_000_000_000  # what a draft may claim to have taken; it is shown, nothing follows from it


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """How a session is speculated. A draft length of 0 is plain decoding."""

    draft_length: int
    window: int
    adaptive: bool = False  # the gateway may choose another draft length at any time


class Listener(Protocol):
    """Who wants to know what becomes of a session."""

    def on_round(self, session: Session, finished: Round, verdict: target_pb2.Verdict) -> None:
        """Tokens were committed."""

    def on_candidates(self, session: Session) -> None:
        """The draft answered."""

    def on_failure(self, session: Session, error: ForerunError) -> None:
        """No target will go on with the session."""


class Session:
    """The truth about one generation. All times are monotonic seconds unless named otherwise."""

    def __init__(
        self,
        session_id: int,
        prompt_token_ids: Sequence[int],
        resumed_token_ids: Sequence[int],
        params: SamplingParams,
        speculation: SpeculationSettings,
        vocabulary_size: int,
        listener: Listener,
        traceparent: str = "",
        deadline: float | None = None,
    ) -> None:
        self.session_id = session_id
        self.token_ids = [*prompt_token_ids, *resumed_token_ids]
        self.prompt_length = len(prompt_token_ids)
        self.params = params
        self.vocabulary_size = vocabulary_size
        self.traceparent = traceparent
        self.deadline = deadline
        self.draft_length = speculation.draft_length
        self.adaptive = speculation.adaptive
        self._window = speculation.window
        self.commit_limit = len(self.token_ids)
        self.candidates = CandidateBuffer(MAX_WINDOW)
        self.target = TargetSide()
        self.draft = DraftSide()
        self.next_round = 0
        self.finish_reason = types_pb2.FINISH_REASON_UNSPECIFIED
        self.closed = False
        self.last_verdict_at = 0.0
        self.silences = 0  # times in a row that the target was asked again for want of a verdict
        self._listener = listener
        self._round_started_unix_ns = time.time_ns()
        self._draft_ns = 0

    @property
    def committed_length(self) -> int:
        return len(self.token_ids)

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.prompt_length]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.prompt_length :]

    @property
    def window(self) -> int:
        """How many candidates may be outstanding."""
        return max(self._window, self.draft_length) if self.draft_length else 0

    @property
    def expected_draft_length(self) -> int:
        """How many candidates a round the target may expect; 0 while no draft is attached."""
        return self.draft_length if self.draft.attached else 0

    @property
    def finished(self) -> bool:
        return self.closed or self.finish_reason != types_pb2.FINISH_REASON_UNSPECIFIED

    @property
    def awaits_verdict(self) -> bool:
        """Whether the target has leave to commit more."""
        return not self.finished and self.target.attached and self.commit_limit > self.committed_length

    @property
    def awaits_candidates(self) -> bool:
        """Whether the draft owes candidates for the next round."""
        return not self.finished and self.expected_draft_length > 0 and not self.candidates.token_ids

    def time_to_live_ms(self) -> int:
        """What is left of the client's deadline, for the services to let go by themselves; 0 without one."""
        return 0 if self.deadline is None else max(1, round((self.deadline - time.monotonic()) * 1000))

    def allow(self, committed_length: int) -> bool:
        """Raises the length up to which the target may commit; True if that is news."""
        raised = committed_length > self.commit_limit
        self.commit_limit = max(self.commit_limit, committed_length)
        return raised

    def fail(self, error: ForerunError) -> None:
        """Ends the session with an error."""
        if not self.finished:
            self.closed = True
            self._listener.on_failure(self, error)

    # What the target says

    def on_verdict(self, verdict: target_pb2.Verdict, now: float) -> None:
        """Takes a verdict of the current attachment. One that does not follow the last one re-opens the session."""
        start = verdict.start_position
        if self.finished or start < self.committed_length:
            return
        if start > self.committed_length or not verdict.token_ids:
            self.target.attach()
            return
        self.last_verdict_at = now
        self.silences = 0
        finished = self._round(verdict)
        self.token_ids.extend(verdict.token_ids)
        self.finish_reason = verdict.finish_reason
        self.next_round = verdict.round_index + 1
        if not verdict.drafted_count and self.candidates.token_ids:
            self.target.offer_again()
        self._listener.on_round(self, finished, verdict)

    def _round(self, verdict: target_pb2.Verdict) -> Round:
        known = verdict.epoch == self.candidates.epoch and verdict.epoch > self.candidates.refuted_epoch
        drafted = tuple(self.candidates.token_ids[: verdict.drafted_count]) if known else ()
        refuted = not self.candidates.commit(verdict.token_ids)
        started, self._round_started_unix_ns = self._round_started_unix_ns, time.time_ns()
        draft_ns, self._draft_ns = self._draft_ns, 0
        return Round(
            index=verdict.round_index,
            draft_token_ids=drafted,
            committed_token_ids=tuple(verdict.token_ids),
            drafted_count=verdict.drafted_count,
            accepted_count=verdict.accepted_count,
            epoch=verdict.epoch,
            refuted=refuted,
            started_unix_ns=started,
            ended_unix_ns=self._round_started_unix_ns,
            step_ns=verdict.step_ns,
            wait_ns=verdict.wait_ns,
            draft_ns=draft_ns if verdict.drafted_count else 0,
            batch_size=verdict.batch_size,
        )

    def on_target_unknown(self) -> None:
        """The target does not know the session: it is opened again."""
        if not self.finished:
            self.target.attach()

    def on_target_failed(self, failed: target_pb2.SessionFailed) -> ForerunError:
        """The target gave the session up; returns why. Overloaded: another time or another target may take it."""
        self.target.detach()
        if failed.code == INVALID_ARGUMENT:
            field, _, problem = failed.detail.partition(": ")
            return InvalidArgument(field, problem or "was refused by the target")
        if failed.code == RESOURCE_EXHAUSTED:
            return Overloaded(f"the target is full: {failed.detail}")
        return Internal(f"the target failed: {failed.detail}")

    # What the draft says

    def on_candidates(self, candidates: draft_pb2.Candidates) -> bool:
        """Takes candidates of the current attachment; False if they were stale. Nonsense detaches the draft."""
        token_ids = list(candidates.token_ids)
        if (token_ids and max(token_ids) >= self.vocabulary_size) or candidates.epoch > MAX_EPOCH:
            self.draft.detach()
            self.draft.hopeless = True
            return False
        self.draft.reopens = 0
        self._draft_ns = min(self._draft_ns + candidates.draft_ns, MAX_DRAFT_NS)
        held, epoch, start = self.candidates, candidates.epoch, candidates.start_position
        taken = held.offer(epoch, start, token_ids, candidates.exhausted, self.token_ids)
        self._listener.on_candidates(self)
        if held.leaves_gap(epoch, start, self.committed_length):
            held.refute()  # what is missing is not said again under this epoch
        return taken

    def on_draft_lost(self, now: float) -> None:
        """The draft forgot the session, or missed a commit: it is opened again, unless it does nothing but that."""
        if self.finished:
            return
        self.draft.reopens += 1
        if self.draft.reopens < MAX_DRAFT_REOPENS:
            self.draft.attach()
        else:
            self._let_go(now)

    def on_silence(self) -> None:
        """The target was silent for too long. It may wait for candidates that are lost: the draft starts over, too."""
        if self.draft.attached and not self.finished:
            self.draft.attach()

    def on_detached(self, detached: draft_pb2.Detached, now: float) -> None:
        """The draft let go of the session."""
        self._let_go(now)
        lasting = (draft_pb2.DETACH_REASON_CONTEXT_LENGTH, draft_pb2.DETACH_REASON_INVALID)
        self.draft.hopeless = detached.reason in lasting

    def _let_go(self, now: float) -> None:
        self.draft.detach()
        self.draft.reopens = 0
        self.draft.retry_at = now + DRAFT_RETRY_S
