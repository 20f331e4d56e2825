"""A peer that keeps its connection and never speaks again is noticed by the channel itself."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from forerun import rpc
from forerun.v1 import draft_pb2, draft_pb2_grpc, types_pb2
from tests.processes import Service

SCALE = 20  # times quicker than in earnest


def test_keepalive_ends_the_stream_of_a_frozen_peer(monkeypatch: pytest.MonkeyPatch, draft: Service) -> None:
    times = {"grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"}
    options = [(name, value // SCALE if name in times else value) for name, value in rpc._CHANNEL_OPTIONS]
    assert times <= {name for name, _ in options}
    monkeypatch.setattr(rpc, "_CHANNEL_OPTIONS", tuple(options))
    bound_s = (rpc.KEEPALIVE_TIME_MS + rpc.KEEPALIVE_TIMEOUT_MS) / SCALE / 1000
    took_s = asyncio.run(noticed_after(draft))
    draft.thaw()
    assert took_s < 2 * bound_s + 1


async def noticed_after(draft: Service) -> float:
    """Seconds from the freeze to the stream's end."""
    async with rpc.channel(draft.address) as channel:
        call = draft_pb2_grpc.DraftServiceStub(channel).Speculate()
        hello = types_pb2.Hello(protocol_version=1, gateway_id="patient", gateway_incarnation=1)
        await call.write(draft_pb2.SpeculateRequest(hello=hello))
        draft.freeze()
        frozen = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.wait_for(call.read(), 30)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        return time.monotonic() - frozen
