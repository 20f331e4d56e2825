"""A stream to a model service, driven by hand: for entries that no gateway would send."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from forerun.config import PROTOCOL_VERSION
from forerun.v1 import draft_pb2, target_pb2, types_pb2

HEAR_TIMEOUT_S = 20.0


class Wire:
    """One Verify or Speculate stream. `TargetWire` and `DraftWire` differ in their messages only."""

    request: Any
    entry: Any

    def __init__(self, call: Any) -> None:
        self.call = call
        self._heard: list[Any] = []

    async def greet(self, gateway_id: str = "by-hand", **fields: Any) -> None:
        """Says Hello; `fields` replace what a good one holds."""
        good = {"protocol_version": PROTOCOL_VERSION, "gateway_id": gateway_id, "gateway_incarnation": 1}
        await self.call.write(self.request(hello=types_pb2.Hello(**(good | fields))))

    async def say(self, session_id: int, attachment: int = 1, **content: Any) -> None:
        """Sends one entry."""
        entry = self.entry(session_id=session_id, attachment=attachment, **content)
        await self.call.write(self.request(entries=[entry]))

    async def hear(self) -> Any:
        """The next entry from the service. Raises AssertionError if the stream ends, TimeoutError if it is silent."""
        async with asyncio.timeout(HEAR_TIMEOUT_S):
            while not self._heard:
                message = await self.call.read()
                assert message is not grpc.aio.EOF, f"{await self.call.code()}: {await self.call.details()}"
                self._heard.extend(message.entries)
        return self._heard.pop(0)

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """How the service ends the stream, whatever it says before."""
        async with asyncio.timeout(HEAR_TIMEOUT_S):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError:
                pass
            return await self.call.code(), await self.call.details()


class TargetWire(Wire):
    """A stream to a target."""

    request = target_pb2.VerifyRequest
    entry = target_pb2.TargetRequestEntry


class DraftWire(Wire):
    """A stream to a draft."""

    request = draft_pb2.SpeculateRequest
    entry = draft_pb2.DraftRequestEntry


def good_sampling(**fields: Any) -> types_pb2.SamplingParams:
    """Complete settings, greedy; `fields` replace some."""
    good = {"temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, "max_tokens": 16, "ignore_eos": True}
    return types_pb2.SamplingParams(**(good | fields))
