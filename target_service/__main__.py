"""`python -m target_service`: reads the settings, loads the model, serves until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from forerun import logs, metrics, telemetry
from forerun.config import CacheConfig, ConfigError, TargetConfig, add_config_flag, add_flags, resolve
from forerun.errors import ForerunError
from forerun.logs import event
from forerun.model_folder import model_folder
from forerun.runtime.compiled import keep_compilations
from forerun.runtime.loading import on_passing_thread
from forerun.runtime.service_metrics import registry_for
from target_service.assembly import assemble, serving

logger = logging.getLogger("target")


async def serve(config: TargetConfig, folder: Path) -> None:
    """Serves until a signal."""
    tracing = telemetry.setup("forerun-target")
    target = await on_passing_thread(assemble, config, folder, tracing)
    try:
        page = metrics.serving(registry_for(target.info, target.engine.read_stats), config.host, config.metrics_port)
        async with serving(target, config.host, config.port) as (server, port):
            address, context_length = f"{config.host}:{port}", target.info.context_length
            event(logger, "listening", address=address, model=config.model, context_length=context_length)
            with page:
                await server.serve_until_signal(config.grace_s)
    finally:
        tracing.shutdown()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="forerun target", description=__doc__)
    add_flags(parser, TargetConfig)
    add_flags(parser, CacheConfig)
    add_config_flag(parser)
    flags = vars(parser.parse_args(arguments))
    logs.setup("target")
    try:
        config = resolve(TargetConfig, flags, prefix="target")
        cache = resolve(CacheConfig, flags).folder
        keep_compilations(cache)
        folder = model_folder(config.model, cache)
        asyncio.run(serve(config, folder))
    except (ConfigError, ForerunError) as error:
        print(f"forerun target: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
