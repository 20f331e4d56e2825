"""`python -m gateway`: reads the settings, loads the tokenizer, connects, serves until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from forerun import logs, metrics, telemetry
from forerun.config import CacheConfig, ConfigError, GatewayConfig, add_config_flag, add_flags, resolve
from forerun.errors import ForerunError
from forerun.logs import event
from forerun.model_folder import model_folder
from gateway.assembly import Gateway, Serving, announce, assemble, serving
from gateway.metrics import registry_for

logger = logging.getLogger("gateway")


async def serve(config: GatewayConfig, folder: Path) -> None:
    """Serves until a signal. Raises FailedPrecondition if the services behind it do not fit together."""
    tracing = telemetry.setup("forerun-gateway")
    gateway = assemble(config, folder, tracing)
    page = metrics.serving(registry_for(gateway.service, gateway.dispatcher), config.host, config.metrics_port)
    try:
        async with serving(gateway, config.host, config.port) as running:
            event(logger, "listening", address=f"{config.host}:{running.port}")
            with page:
                await _until_stopped(gateway, running, config)
    finally:
        tracing.shutdown()


async def _until_stopped(gateway: Gateway, running: Serving, config: GatewayConfig) -> None:
    """Says when it is ready. Raises what ends the links, or keeps it from getting ready."""
    stopped = asyncio.create_task(running.server.serve_until_signal(config.grace_s))
    announced = asyncio.create_task(announce(gateway, running.server))
    await asyncio.wait({stopped, announced, running.links}, return_when=asyncio.FIRST_COMPLETED)
    if running.links.done():
        running.links.result()
    if announced.done():
        announced.result()
        event(logger, "ready", model=gateway.dispatcher.served.model_id if gateway.dispatcher.served else "")
    announced.cancel()
    await stopped


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="forerun gateway", description=__doc__)
    add_flags(parser, GatewayConfig)
    add_flags(parser, CacheConfig)
    add_config_flag(parser)
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
