"""The target's gRPC face: messages in, messages out. The work is the engine's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from forerun.runtime.stream_server import StreamServer
from forerun.v1 import target_pb2, target_pb2_grpc, types_pb2
from target_service.engine import TargetEngine


class TargetService(target_pb2_grpc.TargetServiceServicer):
    """Serves gateways."""

    def __init__(self, info: types_pb2.ServiceInfo, engine: TargetEngine, wake: Callable[[], None]) -> None:
        self._info = info
        self._engine = engine
        self._streams = StreamServer(engine, wake)

    def drain(self) -> None:
        """Ends each stream as soon as it has no sessions."""
        self._streams.drain()

    async def GetInfo(self, request: Any, context: Any) -> target_pb2.TargetServiceGetInfoResponse:
        return target_pb2.TargetServiceGetInfoResponse(info=self._info)

    async def GetStats(self, request: Any, context: Any) -> target_pb2.TargetServiceGetStatsResponse:
        return target_pb2.TargetServiceGetStatsResponse(stats=self._engine.read_stats())

    async def Verify(self, requests: Any, context: Any) -> AsyncIterator[target_pb2.VerifyResponse]:
        serving = self._streams.serve(requests, context, lambda entries: target_pb2.VerifyResponse(entries=entries))
        async with aclosing(serving) as responses:
            async for response in responses:
                yield response
