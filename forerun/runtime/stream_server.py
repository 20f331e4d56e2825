"""The bidirectional stream between a gateway and a model service, the same for draft and target.

It greets, hands each entry to the engine, and writes what the engine queued, all that is there in one message. Policy
and bookkeeping are the engine's; a bad entry never ends the stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Protocol

import grpc

from forerun.config import PROTOCOL_VERSION
from forerun.errors import FailedPrecondition, InvalidArgument, Unavailable
from forerun.logs import event
from forerun.runtime.session_table import SessionTable
from forerun.runtime.stream import Stream
from forerun.v1 import types_pb2

logger = logging.getLogger(__name__)

MAX_GATEWAY_ID = 128
MAX_ENTRIES = 512  # in one message
HELLO_TIMEOUT_S = 10.0


class Engine(Protocol):
    """What the stream needs of an engine."""

    sessions: SessionTable[Any]

    def handle(self, stream: Any, entry: Any, now: float) -> None:
        """Applies an entry."""


class StreamServer:
    """Serves the streams of one engine. `wake` is called after entries arrived."""

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._wake = wake
        self._outputs: set[asyncio.Event] = set()
        self._draining = False

    def drain(self) -> None:
        """Ends each stream as soon as it has no sessions: at once, or with the last of them."""
        self._draining = True
        for output in self._outputs:
            output.set()

    async def serve(
        self, requests: AsyncIterator[Any], context: Any, respond: Callable[[list[Any]], Any]
    ) -> AsyncGenerator[Any, None]:
        """One stream, from Hello to its end; `respond` makes a message of entries.

        Raises InvalidArgument without a valid Hello, FailedPrecondition for another protocol version, Unavailable
        once there is nothing to do and the service is stopping.
        """
        hello = await self._greet(requests)
        output = asyncio.Event()
        stream: Stream[Any, Any] = Stream(hello.gateway_id, output.set)
        self._engine.sessions.connect(stream)
        event(logger, "gateway_connected", gateway=hello.gateway_id)
        self._outputs.add(output)
        reader = asyncio.create_task(self._read(requests, stream))
        reader.add_done_callback(lambda _: output.set())
        try:
            while not reader.done():
                await output.wait()
                output.clear()
                if stream.replaced:
                    await context.abort(grpc.StatusCode.ABORTED, "a newer stream of this gateway took over")
                entries = stream.take()
                for start in range(0, len(entries), MAX_ENTRIES):
                    yield respond(entries[start : start + MAX_ENTRIES])
                if self._draining and not stream.sessions:
                    raise Unavailable("the service is stopping")
            reader.result()
        finally:
            self._outputs.discard(output)
            self._engine.sessions.disconnect(stream)
            self._wake()
            reader.cancel()
            with suppress(asyncio.CancelledError, Exception):  # what the reader raised was raised above
                await reader
            event(logger, "gateway_disconnected", gateway=hello.gateway_id)

    async def _greet(self, requests: AsyncIterator[Any]) -> types_pb2.Hello:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                first = await anext(requests, None)
        except TimeoutError:
            raise InvalidArgument("hello", f"did not come within {HELLO_TIMEOUT_S:g} s") from None
        if first is None or not first.HasField("hello"):
            raise InvalidArgument("hello", "must be set in the first message of the stream")
        hello: types_pb2.Hello = first.hello
        if hello.protocol_version != PROTOCOL_VERSION:
            raise FailedPrecondition(
                f"the gateway speaks protocol {hello.protocol_version}, this service {PROTOCOL_VERSION}: "
                "upgrade gateway, draft and target together"
            )
        if not 1 <= len(hello.gateway_id) <= MAX_GATEWAY_ID:
            raise InvalidArgument("hello.gateway_id", f"must be 1 to {MAX_GATEWAY_ID} characters")
        if hello.gateway_incarnation == 0:
            raise InvalidArgument("hello.gateway_incarnation", "must not be zero")
        return hello

    async def _read(self, requests: AsyncIterator[Any], stream: Stream[Any, Any]) -> None:
        async for request in requests:
            if request.HasField("hello"):
                raise InvalidArgument("hello", "must be set in the first message only")
            now = time.monotonic()
            for entry in request.entries:
                self._engine.handle(stream, entry, now)
            self._wake()
            if self._draining:
                self.drain()  # an entry may have closed the last session
