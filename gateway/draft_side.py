"""What the draft has been told of one session, and what it must be told next. The draft's twin of `target_side`.

Commits that pile up while the stream is busy go out as one, because only their start and end are kept.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forerun.sampling_params import to_proto
from forerun.v1 import draft_pb2, types_pb2

if TYPE_CHECKING:
    from gateway.session import Session


class DraftSide:
    """One session's standing with its draft service."""

    __slots__ = (
        "_opened_above",
        "_told_configuration",
        "_told_length",
        "_told_refuted_epoch",
        "attached",
        "attachment",
        "hopeless",
        "open_due",
        "owed_since",
        "reopens",
        "retry_at",
    )

    def __init__(self) -> None:
        self.attachment = 0
        self.attached = False
        self.open_due = False
        self.hopeless = False  # no draft will take this session
        self.retry_at = 0.0  # monotonic seconds; no draft is tried before
        self.reopens = 0  # in a row, for want of the session, without a candidate between them
        self.owed_since: float | None = None  # since when candidates are due; monotonic seconds
        self._told_length = 0
        self._told_refuted_epoch = 0
        self._opened_above = 0  # every epoch of this attachment is above this one
        self._told_configuration = (0, 0)

    def attach(self) -> None:
        """Opens the session, on this draft or another, from what is committed now."""
        self.attachment += 1
        self.attached = True
        self.open_due = True
        self.owed_since = None

    def detach(self) -> None:
        """The draft is gone; whatever it says from now on is of an older attachment."""
        self.attachment += 1
        self.attached = False
        self.open_due = False

    def entries(self, session: Session) -> list[draft_pb2.DraftRequestEntry]:
        """What is to be said now, in order. Empty if all is said."""
        if not self.attached:
            return []
        if self.open_due:
            self._owe(session)
            return [self._entry(session, open=self._open(session))]
        entries = []
        configuration = (session.draft_length, session.window)
        if configuration != self._told_configuration:
            self._told_configuration = configuration
            if session.draft_length == 0:
                self.owed_since = None
            change = draft_pb2.ConfigureDraft(draft_length=configuration[0], window=configuration[1])
            entries.append(self._entry(session, configure=change))
        if session.draft_length == 0:  # paused: what is committed meanwhile goes as one when drafting goes on
            return entries
        commit = self._commit(session)
        if commit is not None:
            self._owe(session)
            entries.append(commit)
        return entries

    def _owe(self, session: Session) -> None:
        """Candidates are due from now on, unless they are already, or none are asked for. Some at hand: no hurry."""
        if session.draft_length and (self.owed_since is None or session.candidates.token_ids):
            self.owed_since = time.monotonic()

    def _open(self, session: Session) -> draft_pb2.DraftOpen:
        self.open_due = False
        self._told_length = session.committed_length
        self._told_refuted_epoch = self._opened_above = session.candidates.epoch
        self._told_configuration = (session.draft_length, session.window)
        return draft_pb2.DraftOpen(
            prompt_token_ids=session.prompt_token_ids,
            output_token_ids=session.output_token_ids,
            sampling=to_proto(session.params),
            draft_length=session.draft_length,
            window=session.window,
            refuted_epoch=self._opened_above,
            round_index=session.next_round,
            traceparent=session.traceparent,
            time_to_live_ms=session.time_to_live_ms(),
        )

    def _commit(self, session: Session) -> draft_pb2.DraftRequestEntry | None:
        refuted = session.candidates.refuted_epoch
        rolls_back = refuted >= max(session.candidates.epoch, self._opened_above + 1)  # no living epoch was seen since
        start = self._told_length
        if start == session.committed_length:
            if refuted <= self._told_refuted_epoch:
                return None
            start -= 1  # nothing new is committed: the last token again says where the draft must be
        token_ids = session.token_ids[start:]
        self._told_length = session.committed_length
        if not rolls_back:
            advance = draft_pb2.Advance(start_position=start, token_ids=token_ids, round_index=session.next_round)
            return self._entry(session, advance=advance)
        self._told_refuted_epoch = refuted
        rollback = draft_pb2.Rollback(
            start_position=start, token_ids=token_ids, refuted_epoch=refuted, round_index=session.next_round
        )
        return self._entry(session, rollback=rollback)

    def close_entry(self, session: Session) -> draft_pb2.DraftRequestEntry:
        """Ends the session on the draft."""
        return self._entry(session, close=types_pb2.Close())

    def _entry(self, session: Session, **content: object) -> draft_pb2.DraftRequestEntry:
        return draft_pb2.DraftRequestEntry(
            session_id=session.session_id,
            attachment=self.attachment,
            **content,  # type: ignore[arg-type]
        )
