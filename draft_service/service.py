"""The draft's gRPC face: messages in, messages out. The work is the engine's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from draft_service.engine import DraftEngine
from forerun.runtime.stream_server import StreamServer
from forerun.v1 import draft_pb2, draft_pb2_grpc, types_pb2


class DraftService(draft_pb2_grpc.DraftServiceServicer):
    """Serves gateways."""

    def __init__(self, info: types_pb2.ServiceInfo, engine: DraftEngine, wake: Callable[[], None]) -> None:
        self._info = info
        self._engine = engine
        self._streams = StreamServer(engine, wake)

    def drain(self) -> None:
        """Ends each stream as soon as it has no sessions."""
        self._streams.drain()

    async def GetInfo(self, request: Any, context: Any) -> draft_pb2.DraftServiceGetInfoResponse:
        return draft_pb2.DraftServiceGetInfoResponse(info=self._info)

    async def GetStats(self, request: Any, context: Any) -> draft_pb2.DraftServiceGetStatsResponse:
        return draft_pb2.DraftServiceGetStatsResponse(stats=self._engine.read_stats())

    async def Speculate(self, requests: Any, context: Any) -> AsyncIterator[draft_pb2.SpeculateResponse]:
        serving = self._streams.serve(requests, context, lambda entries: draft_pb2.SpeculateResponse(entries=entries))
        async with aclosing(serving) as responses:
            async for response in responses:
                yield response
