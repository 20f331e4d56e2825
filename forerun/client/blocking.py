"""The blocking client."""

from __future__ import annotations

import threading
from typing import Any, Self, Unpack

import grpc

from forerun.client.answer import Answer, Chunk
from forerun.client.exchange import CHANNEL_OPTIONS, DEFAULT_ADDRESS, Exchange, Handle
from forerun.client.prompt import Options, Prompt, make_request
from forerun.errors import ForerunError
from forerun.rpc_status import from_rpc_error
from forerun.v1 import gateway_pb2, gateway_pb2_grpc


class Stream(Handle):
    """The chunks of one answer. The request is sent when the first is asked for."""

    def __init__(self, stub: Any, exchange: Exchange) -> None:
        super().__init__(stub, exchange)
        self._closed = threading.Event()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        while not self._closed.is_set():
            try:
                self._open()
                for response in self._call:
                    chunk = self._exchange.take(response)
                    if chunk is not None:
                        return chunk
                self._exchange.check_end()
                self._closed.set()
            except grpc.RpcError as error:
                self._after(error)
            except ForerunError:
                self.close()
                raise
        raise StopIteration

    def _after(self, error: grpc.RpcError) -> None:
        """Waits until the call may be made again. Raises what the error means if it may not."""
        if self.answer.ended or self._closed.is_set():
            self._closed.set()
            return
        self._call = None
        try:
            self._closed.wait(self._exchange.pause_after(from_rpc_error(error)))
        except ForerunError as meaning:
            self._closed.set()
            raise meaning from error

    def close(self) -> None:
        """Cancels what is still to come. Any thread may do it; the one that reads then sees the end."""
        self._closed.set()
        self._cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """A connection to a gateway, host:port. Threads may share it. It connects when it is first used.

    `timeout` is in seconds and for the whole answer; `retries` is how often an absent or a full gateway is asked again.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub: Any = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def generate(
        self, prompt: Prompt, *, timeout: float | None = None, retries: int = 0, **options: Unpack[Options]
    ) -> Stream:
        """The answer's chunks as they come."""
        return self.send(make_request(prompt, **options), timeout=timeout, retries=retries)

    def complete(
        self, prompt: Prompt, *, timeout: float | None = None, retries: int = 0, **options: Unpack[Options]
    ) -> Answer:
        """The whole answer at once."""
        return _read(self.generate(prompt, timeout=timeout, retries=retries, **options))

    def resume(self, answer: Answer | Stream, *, timeout: float | None = None, retries: int = 0) -> Stream:
        """The rest of an answer that broke off. Its chunks are the missing ones, its `text` is all of it."""
        held = answer.answer if isinstance(answer, Stream) else answer
        return Stream(self._stub, Exchange(held.unfinished(), timeout, retries))

    def send(self, request: gateway_pb2.GenerateRequest, *, timeout: float | None = None, retries: int = 0) -> Stream:
        """`generate` for a request that is made already."""
        return Stream(self._stub, Exchange(Answer(request), timeout, retries))

    def status(self, timeout: float | None = 10.0) -> gateway_pb2.GetStatusResponse:
        """What the gateway serves and how busy it is, as the protocol's message."""
        try:
            response: gateway_pb2.GetStatusResponse = self._stub.GetStatus(
                gateway_pb2.GetStatusRequest(), timeout=timeout
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        return response

    def close(self) -> None:
        """Ends the connection and all streams on it."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(stream: Stream) -> Answer:
    with stream:
        for _ in stream:
            pass
    return stream.answer
