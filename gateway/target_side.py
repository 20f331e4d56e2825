"""What the target has been told of one session, and what it must be told next.

Nothing is queued: `entries` compares what is true with what was said and returns the difference, so however late it is
asked, it says each thing once and nothing is lost. Asked after a re-open it says everything again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.sampling_params import to_proto
from forerun.v1 import target_pb2, types_pb2

if TYPE_CHECKING:
    from gateway.session import Session


class TargetSide:
    """One session's standing with its target service."""

    __slots__ = (
        "_exhausted_at",
        "_offered_epoch",
        "_offered_length",
        "_told_draft_length",
        "_told_limit",
        "attached",
        "attachment",
        "open_due",
    )

    def __init__(self) -> None:
        self.attachment = 0
        self.attached = False
        self.open_due = False
        self._told_limit = 0
        self._told_draft_length = 0
        self._offered_epoch = 0
        self._offered_length = 0
        self._exhausted_at = -1

    def attach(self) -> None:
        """Opens the session, on this target or another, from what is committed now."""
        self.attachment += 1
        self.attached = True
        self.open_due = True

    def detach(self) -> None:
        """The target is gone; whatever it says from now on is of an older attachment."""
        self.attachment += 1
        self.attached = False
        self.open_due = False

    def offer_again(self) -> None:
        """Candidates were held but none was verified: if they are lost rather than late, this brings them back."""
        self._offered_epoch = 0

    def entries(self, session: Session) -> list[target_pb2.TargetRequestEntry]:
        """What is to be said now, in order. Empty if all is said."""
        if not self.attached:
            return []
        entries = []
        if self.open_due:
            entries.append(self._entry(session, open=self._open(session)))
        else:
            change = self._changes(session)
            if change is not None:
                entries.append(self._entry(session, configure=change))
        offer = self._offer(session)
        if offer is not None:
            entries.append(self._entry(session, candidates=offer))
        return entries

    def _open(self, session: Session) -> target_pb2.TargetOpen:
        self.open_due = False
        self._offered_epoch = 0
        self._exhausted_at = -1
        self._told_limit, self._told_draft_length = session.commit_limit, session.expected_draft_length
        return target_pb2.TargetOpen(
            prompt_token_ids=session.prompt_token_ids,
            output_token_ids=session.output_token_ids,
            sampling=to_proto(session.params),
            commit_limit=self._told_limit,
            draft_length=self._told_draft_length,
            round_index=session.next_round,
            traceparent=session.traceparent,
            time_to_live_ms=session.time_to_live_ms(),
        )

    def _changes(self, session: Session) -> target_pb2.ConfigureTarget | None:
        limit, draft_length = session.commit_limit, session.expected_draft_length
        if (limit, draft_length) == (self._told_limit, self._told_draft_length):
            return None
        self._told_limit, self._told_draft_length = limit, draft_length
        return target_pb2.ConfigureTarget(commit_limit=limit, draft_length=draft_length)

    def _offer(self, session: Session) -> target_pb2.OfferCandidates | None:
        held = session.candidates
        committed_length = session.committed_length
        if held.epoch != self._offered_epoch:
            self._offered_epoch = held.epoch
            self._offered_length = committed_length
            self._exhausted_at = -1
        start = max(self._offered_length, committed_length)
        token_ids: Sequence[int] = held.token_ids[start - committed_length :]
        end = start + len(token_ids)
        exhausted = held.exhausted(committed_length)
        if not token_ids and (not exhausted or self._exhausted_at == end):
            return None
        self._offered_length = end
        self._exhausted_at = end if exhausted else -1
        return target_pb2.OfferCandidates(
            epoch=held.epoch, start_position=start, token_ids=token_ids, exhausted=exhausted
        )

    def close_entry(self, session: Session) -> target_pb2.TargetRequestEntry:
        """Ends the session on the target."""
        return self._entry(session, close=types_pb2.Close())

    def _entry(self, session: Session, **content: object) -> target_pb2.TargetRequestEntry:
        return target_pb2.TargetRequestEntry(
            session_id=session.session_id,
            attachment=self.attachment,
            **content,  # type: ignore[arg-type]
        )
