"""The asyncio client: the blocking one, awaited."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any, Self, Unpack

import grpc

from forerun.client.answer import Answer, Chunk
from forerun.client.exchange import CHANNEL_OPTIONS, DEFAULT_ADDRESS, Exchange, Handle
from forerun.client.prompt import Options, Prompt, make_request
from forerun.errors import ForerunError
from forerun.rpc_status import from_rpc_error
from forerun.v1 import gateway_pb2, gateway_pb2_grpc


class AsyncStream(Handle):
    """The chunks of one answer. The request is sent when the first is asked for; cancelling the task cancels it."""

    def __init__(self, stub: Any, exchange: Exchange) -> None:
        super().__init__(stub, exchange)
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._closed:
            try:
                self._open()
                while isinstance(response := await self._call.read(), gateway_pb2.GenerateResponse):
                    chunk = self._exchange.take(response)
                    if chunk is not None:
                        return chunk
                self._exchange.check_end()
                self._closed = True
            except grpc.RpcError as error:
                await self._after(error)
            except ForerunError:
                await self.aclose()
                raise
        raise StopAsyncIteration

    async def _after(self, error: grpc.RpcError) -> None:
        """Waits until the call may be made again. Raises what the error means if it may not."""
        if self.answer.ended:
            self._closed = True
            return
        self._call = None
        try:
            await asyncio.sleep(self._exchange.pause_after(from_rpc_error(error)))
        except ForerunError as meaning:
            self._closed = True
            raise meaning from error

    async def aclose(self) -> None:
        """Cancels what is still to come."""
        self._closed = True
        self._cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncClient:
    """`Client` for asyncio. It belongs to the event loop in which it is first used."""

    def __init__(self, address: str = DEFAULT_ADDRESS) -> None:
        self.address = address

    @cached_property
    def _channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)

    @cached_property
    def _stub(self) -> Any:
        return gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def generate(
        self, prompt: Prompt, *, timeout: float | None = None, retries: int = 0, **options: Unpack[Options]
    ) -> AsyncStream:
        """The answer's chunks as they come."""
        return self.send(make_request(prompt, **options), timeout=timeout, retries=retries)

    async def complete(
        self,
        prompt: Prompt,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the call's deadline, which the gateway sees too
        retries: int = 0,
        **options: Unpack[Options],
    ) -> Answer:
        """The whole answer at once."""
        async with self.generate(prompt, timeout=timeout, retries=retries, **options) as stream:
            async for _ in stream:
                pass
        return stream.answer

    def resume(self, answer: Answer | AsyncStream, *, timeout: float | None = None, retries: int = 0) -> AsyncStream:
        """The rest of an answer that broke off. Its chunks are the missing ones, its `text` is all of it."""
        held = answer.answer if isinstance(answer, AsyncStream) else answer
        return AsyncStream(self._stub, Exchange(held.unfinished(), timeout, retries))

    def send(
        self, request: gateway_pb2.GenerateRequest, *, timeout: float | None = None, retries: int = 0
    ) -> AsyncStream:
        """`generate` for a request that is made already."""
        return AsyncStream(self._stub, Exchange(Answer(request), timeout, retries))

    async def status(self, timeout: float | None = 10.0) -> gateway_pb2.GetStatusResponse:  # noqa: ASYNC109
        """What the gateway serves and how busy it is, as the protocol's message."""
        try:
            response: gateway_pb2.GetStatusResponse = await self._stub.GetStatus(
                gateway_pb2.GetStatusRequest(), timeout=timeout
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        return response

    async def aclose(self) -> None:
        """Ends the connection and all streams on it."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
