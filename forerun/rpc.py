"""What every forerun process does the same way with gRPC: serving, connecting, and errors on the wire.

`Server` is a grpc.aio server with health, reflection, keepalive and an orderly stop; `channel` is its counterpart.
Servicers that it serves raise `ForerunError`s, which `forerun.rpc_status` turns into statuses and, at the client,
back. It knows no forerun message and holds no policy.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from forerun import health
from forerun.errors import FailedPrecondition
from forerun.logs import event
from forerun.rpc_status import abort, from_rpc_error, translated

__all__ = ["Server", "abort", "channel", "from_rpc_error", "translated"]

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000

# Both ends ping, so that a peer whose host vanished is noticed within 15 seconds rather than after hours.
_SHARED_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),  # a minute by default, and the longer of the two counts
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
# gRPC ignores an option whose name it does not know, so a test looks each of them up in its library.
_SERVER_OPTIONS = (
    *_SHARED_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # otherwise a second server on the same port starts and takes half of the calls
)
_CHANNEL_OPTIONS = (
    *_SHARED_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, whose back-off no other channel shares
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def channel(address: str) -> grpc.aio.Channel:
    """A connection to host:port that notices a dead peer and comes back soon after a restart."""
    return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)


class Server:
    """One listening port: servicers, health and reflection, and a stop that lets open calls finish."""

    def __init__(self) -> None:
        self.raw = grpc.aio.server(options=_SERVER_OPTIONS)
        self.health = health.Health()
        self._at_stop: list[Callable[[], None]] = []
        self._names = [health.SERVICE_NAME, reflection.SERVICE_NAME]
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.raw)

    def add(self, add_to_server: Callable[[Any, Any], None], servicer: Any, service_name: str) -> None:
        """Serves `servicer` under its full name, with its errors translated. Only before `start`."""
        add_to_server(translated(servicer), self.raw)
        self._names.append(service_name)
        self.health.add(service_name)

    def at_stop(self, act: Callable[[], None]) -> None:
        """Has `act` called when the server begins to stop, so that streams without end find theirs."""
        self._at_stop.append(act)

    async def start(self, host: str, port: int) -> int:
        """Listens, not yet ready, and returns the port. Raises FailedPrecondition if it cannot."""
        reflection.enable_server_reflection(self._names, self.raw)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = self.raw.add_insecure_port(address)
        except RuntimeError as error:
            raise FailedPrecondition(f"cannot listen on {address}: {_why_not(host, port)}") from error
        await self.raw.start()
        return bound

    def ready(self, serving: bool = True) -> None:
        """Tells health checks whether to send work here. Nothing is refused by it."""
        self.health.set_all(serving)

    async def stop(self, grace_s: float | None = None) -> None:
        """Refuses new calls at once and ends open ones after `grace_s`."""
        self.health.finish()
        for act in self._at_stop:
            act()
        await self.raw.stop(grace_s)

    async def serve_until_signal(self, grace_s: float, drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Returns after SIGTERM or SIGINT, once the server has stopped.

        `drain` runs meanwhile: it tells long-lived streams in-band to finish. A second signal ends the grace period.
        """
        signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.put_nowait, number)
        try:
            event(logger, "stopping", signal=(await signals.get()).name, grace_s=grace_s)
            await self._drain(grace_s, drain, signals)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        event(logger, "stopped")

    async def _drain(
        self, grace_s: float, drain: Callable[[], Awaitable[None]] | None, signals: asyncio.Queue[signal.Signals]
    ) -> None:
        stopping = asyncio.ensure_future(self.stop(grace_s))
        draining = asyncio.ensure_future(_run_drain(drain))
        hurry = asyncio.ensure_future(signals.get())
        await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await self.stop(None)
        await stopping
        for task in (draining, hurry):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _run_drain(drain: Callable[[], Awaitable[None]] | None) -> None:
    try:
        if drain is not None:
            await drain()
    except Exception:
        logger.exception("drain_failed")


def _why_not(host: str, port: int) -> str:
    """gRPC says only that it failed; asking the system for the same address gives the reason."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(where)
    except OSError as error:
        return str(error.strerror or error).lower()
    return "it was taken a moment ago"
