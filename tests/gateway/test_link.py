"""A link to a replica that takes nothing any more."""

from __future__ import annotations

import asyncio
import time

from forerun.config import GatewayConfig
from forerun.v1 import draft_pb2, gateway_pb2, types_pb2
from gateway.dispatcher import Dispatcher
from gateway.link import WRITE_TIMEOUT_S


class Deaf:
    """A call whose peer never reads."""

    def __init__(self) -> None:
        self.cancelled = False

    async def write(self, message: object) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        self.cancelled = True


def test_a_replica_that_does_not_read_is_given_up_and_not_before_the_bound() -> None:
    asyncio.run(write_to_the_deaf())


async def write_to_the_deaf() -> None:
    dispatcher = Dispatcher(GatewayConfig(), "fingerprint")
    link, call = dispatcher.drafts[0], Deaf()
    link.state, link.info, link._call = gateway_pb2.REPLICA_STATE_READY, types_pb2.ServiceInfo(max_sessions=1), call
    link._closing.append(draft_pb2.DraftRequestEntry(session_id=1, attachment=1, close=types_pb2.Close()))
    link._output.set()
    writer = asyncio.create_task(link._write(call))
    await asyncio.sleep(0)
    began = time.monotonic()
    dispatcher.sweep(began + 0.9 * WRITE_TIMEOUT_S)
    assert not call.cancelled
    dispatcher.sweep(began + 1.1 * WRITE_TIMEOUT_S)
    assert call.cancelled
    writer.cancel()
