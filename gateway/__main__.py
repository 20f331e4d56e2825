"""`python -m gateway`: reads the settings, loads the tokenizer, connects, serves until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from forerun import logs, telemetry
from forerun.config import CacheConfig, ConfigError, GatewayConfig, add_flags, resolve
from forerun.errors import FailedPrecondition, ForerunError
from forerun.logs import event
from forerun.model_folder import model_folder
from forerun.rpc import Server
from forerun.v1 import gateway_pb2_grpc
from gateway.dispatcher import Dispatcher
from gateway.service import GatewayService
from gateway.tokenizer import Tokenizer

logger = logging.getLogger("gateway")


async def serve(config: GatewayConfig, folder: Path) -> None:
    """Serves until a signal. Raises FailedPrecondition if the services behind it do not fit together."""
    tracing = telemetry.setup("forerun-gateway")
    tokenizer = Tokenizer(folder)
    dispatcher = Dispatcher(config, tokenizer.vocabulary.fingerprint)
    server = Server()
    service = GatewayService(config, tokenizer, dispatcher, tracing)
    server.add(gateway_pb2_grpc.add_GatewayServiceServicer_to_server, service, "forerun.v1.GatewayService")
    port = await server.start(config.host, config.port)
    event(logger, "listening", address=f"{config.host}:{port}")
    links = asyncio.create_task(dispatcher.run())
    try:
        stopped = asyncio.create_task(server.serve_until_signal(config.grace_s))
        tried = asyncio.create_task(dispatcher.wait_until_tried())
        await asyncio.wait({stopped, tried, links}, return_when=asyncio.FIRST_COMPLETED)
        if links.done():
            links.result()
        if tried.done():
            if dispatcher.refusals():
                raise FailedPrecondition("; ".join(dispatcher.refusals()))
            server.ready()
            event(logger, "ready", model=dispatcher.served.model_id if dispatcher.served else "")
        tried.cancel()
        await stopped
    finally:
        links.cancel()
        await server.stop(0)
        tracing.shutdown()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="forerun gateway", description=__doc__)
    add_flags(parser, GatewayConfig)
    add_flags(parser, CacheConfig)
    flags = vars(parser.parse_args(arguments))
    logs.setup("gateway")
    try:
        config = resolve(GatewayConfig, flags, prefix="gateway")
        folder = model_folder(config.model, resolve(CacheConfig, flags).folder)
        asyncio.run(serve(config, folder))
    except (ConfigError, ForerunError) as error:
        print(f"forerun gateway: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
