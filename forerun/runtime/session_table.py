"""Which sessions a model service has, by gateway stream and number. Draft and target keep theirs in one of these.

It settles what the protocol says about streams and attachments, the same for both: a newer stream of a gateway replaces
the older one, entries of an older attachment are stale, and closing twice is closing once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from forerun.runtime.stream import Stream
from forerun.v1 import types_pb2


class HasIdentity(Protocol):
    """What the table needs to know of a session."""

    stream: Stream[Any, Any]
    session_id: int
    attachment: int
    closed: bool


SessionT = TypeVar("SessionT", bound=HasIdentity)


class Standing(Enum):
    """How an entry's attachment stands to the session that the table has."""

    CURRENT = "current"
    STALE = "stale"  # older than the session
    UNKNOWN = "unknown"  # no such session, or the entry is newer than it


class SessionTable(Generic[SessionT]):
    """All open sessions in order of opening, and the streams they belong to."""

    def __init__(self, on_close: Callable[[SessionT], None]) -> None:
        self._on_close = on_close
        self._streams: dict[str, Stream[SessionT, Any]] = {}
        self._sessions: dict[int, SessionT] = {}  # by id(), in order of opening

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[SessionT]:
        return iter(list(self._sessions.values()))

    def connect(self, stream: Stream[SessionT, Any]) -> None:
        """Takes a gateway's stream; an older one of the same gateway is replaced and its sessions closed."""
        older = self._streams.get(stream.gateway_id)
        if older is not None:
            self.disconnect(older)
            older.replace()
        self._streams[stream.gateway_id] = stream

    def disconnect(self, stream: Stream[SessionT, Any]) -> None:
        """Closes a stream's sessions. Safe to repeat."""
        for session in list(stream.sessions.values()):
            self.close(session)
        if self._streams.get(stream.gateway_id) is stream:
            del self._streams[stream.gateway_id]

    def standing(self, stream: Stream[SessionT, Any], session_id: int, attachment: int) -> Standing:
        """How an entry with these numbers is to be taken."""
        session = stream.sessions.get(session_id)
        if session is None or attachment > session.attachment:
            return Standing.UNKNOWN
        return Standing.CURRENT if attachment == session.attachment else Standing.STALE

    def add(self, session: SessionT) -> None:
        """Takes a new session; an older attachment of it is closed."""
        self.close_number(session.stream, session.session_id)
        session.stream.sessions[session.session_id] = session
        self._sessions[id(session)] = session

    def close_number(self, stream: Stream[SessionT, Any], session_id: int) -> None:
        """Forgets whichever attachment of a session is open. Safe to repeat."""
        session = stream.sessions.get(session_id)
        if session is not None:
            self.close(session)

    def close(self, session: SessionT) -> None:
        """Forgets a session. Safe to repeat."""
        if session.closed:
            return
        session.closed = True
        del self._sessions[id(session)]
        del session.stream.sessions[session.session_id]
        self._on_close(session)

    def fill(self, stats: types_pb2.ServiceStats) -> None:
        """Sets the gauges that follow from the table."""
        stats.open_sessions = len(self._sessions)
        stats.open_streams = len(self._streams)
        stats.queued_entries = sum(stream.queued for stream in self._streams.values())
