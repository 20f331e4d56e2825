"""Puts a gateway together from its settings, and runs it. `python -m gateway` and tests both do it so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from forerun.config import GatewayConfig
from forerun.errors import FailedPrecondition
from forerun.rpc import Server
from forerun.telemetry import Tracing
from forerun.v1 import gateway_pb2_grpc
from gateway.dispatcher import Dispatcher
from gateway.service import GatewayService
from gateway.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that is ready to be served."""

    tokenizer: Tokenizer
    dispatcher: Dispatcher
    service: GatewayService


@dataclass(frozen=True, slots=True)
class Serving:
    """A gateway that listens. `links` never ends but by a bug, which it raises."""

    server: Server
    port: int
    links: asyncio.Task[None]


def assemble(config: GatewayConfig, folder: Path, tracing: Tracing) -> Gateway:
    """Loads the tokenizer; on the event loop, since links belong to it."""
    tokenizer = Tokenizer(folder)
    dispatcher = Dispatcher(config, tokenizer.vocabulary.fingerprint)
    return Gateway(tokenizer, dispatcher, GatewayService(config, tokenizer, dispatcher, tracing))


@asynccontextmanager
async def serving(gateway: Gateway, host: str, port: int) -> AsyncIterator[Serving]:
    """Listens and keeps its links up for as long as the block lasts. Not yet SERVING: see `announce`."""
    server = Server()
    server.add(gateway_pb2_grpc.add_GatewayServiceServicer_to_server, gateway.service, "forerun.v1.GatewayService")
    bound = await server.start(host, port)
    links = asyncio.create_task(gateway.dispatcher.run())
    try:
        yield Serving(server, bound, links)
    finally:
        await server.stop(0)
        links.cancel()
        with suppress(asyncio.CancelledError):
            await links


async def announce(gateway: Gateway, server: Server) -> None:
    """SERVING as soon as a target is there and every draft was tried.

    Raises FailedPrecondition if the services behind it do not fit together.
    """
    await gateway.dispatcher.wait_until_tried()
    refusals = gateway.dispatcher.refusals()
    if refusals:
        raise FailedPrecondition("; ".join(refusals))
    server.ready()
