"""One gateway's stream to a model service: who it is, its sessions, and what waits to be written to it.

Both engines keep their sessions here, so a session is known by its gateway and its number, and the end of a stream is
the end of its sessions. It knows no gRPC; `stream_server` reads and writes the real thing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

SessionT = TypeVar("SessionT")
EntryT = TypeVar("EntryT")


class Stream(Generic[SessionT, EntryT]):
    """A connected gateway. What is queued is bounded by its sessions: each has bounded credit."""

    def __init__(self, gateway_id: str, on_output: Callable[[], None]) -> None:
        self.gateway_id = gateway_id
        self.sessions: dict[int, SessionT] = {}
        self.replaced = False
        self._on_output = on_output
        self._outbox: list[EntryT] = []

    def send(self, entry: EntryT) -> None:
        """Queues an entry for the gateway."""
        self._outbox.append(entry)
        self._on_output()

    def take(self) -> list[EntryT]:
        """Everything queued since the last call."""
        entries, self._outbox = self._outbox, []
        return entries

    @property
    def queued(self) -> int:
        return len(self._outbox)

    def replace(self) -> None:
        """Ends the stream because the same gateway opened a newer one."""
        self.replaced = True
        self._on_output()
