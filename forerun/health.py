"""The standard `grpc.health.v1` service, so that probes, load balancers and compose files know when to send work.

It differs from the one in grpcio-health-checking in one thing: `finish` ends every Watch stream after a last
NOT_SERVING, so that somebody who watches does not hold up a shutdown for the whole of its grace period.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE_NAME = "grpc.health.v1.Health"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Says of each named service, and of '' for the whole process, whether it takes work. Starts with NOT_SERVING."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {"": _NOT_SERVING}
        self._changed = asyncio.Event()
        self._finished = False

    def add(self, service: str) -> None:
        self._statuses[service] = self._statuses[""]
        self._announce()

    def set_all(self, serving: bool) -> None:
        """Gives every service the same status; after `finish` nothing is SERVING again."""
        status = _SERVING if serving and not self._finished else _NOT_SERVING
        self._statuses = dict.fromkeys(self._statuses, status)
        self._announce()

    def finish(self) -> None:
        """NOT_SERVING for good; open watches hear of it and end."""
        self._finished = True
        self.set_all(False)

    def _announce(self) -> None:
        # Each change has an event of its own: a watcher that is busy writing cannot miss it, nor see it twice.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service named {request.service!r}")
        return health_pb2.HealthCheckResponse(status=status)

    async def List(self, request: Any, context: Any) -> Any:
        statuses = {name: health_pb2.HealthCheckResponse(status=status) for name, status in self._statuses.items()}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, context: Any) -> None:
        last: int | None = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, _UNKNOWN)
            if status != last:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                last = status
            if self._finished and changed is self._changed:
                return
            await changed.wait()
