"""`python -m draft_service`: reads the settings, loads the drafter, serves until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from draft_service.assembly import assemble, load, serving
from forerun import logs, metrics, telemetry
from forerun.config import CacheConfig, ConfigError, DraftConfig, add_config_flag, add_flags, resolve
from forerun.errors import ForerunError
from forerun.logs import event
from forerun.runtime.compiled import keep_compilations
from forerun.runtime.loading import on_passing_thread
from forerun.runtime.service_metrics import registry_for

logger = logging.getLogger("draft")


async def serve(config: DraftConfig, cache: Path) -> None:
    """Serves until a signal."""
    tracing = telemetry.setup("forerun-draft")
    draft = assemble(await on_passing_thread(load, config, cache), tracing)
    try:
        page = metrics.serving(registry_for(draft.info, draft.engine.read_stats), config.host, config.metrics_port)
        async with serving(draft, config.host, config.port) as (server, port):
            event(logger, "listening", address=f"{config.host}:{port}", model=config.model)
            with page:
                await server.serve_until_signal(config.grace_s)
    finally:
        tracing.shutdown()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="forerun draft", description=__doc__)
    add_flags(parser, DraftConfig)
    add_flags(parser, CacheConfig)
    add_config_flag(parser)
    flags = vars(parser.parse_args(arguments))
    logs.setup("draft")
    try:
        config = resolve(DraftConfig, flags, prefix="draft")
        cache = resolve(CacheConfig, flags).folder
        keep_compilations(cache)
        asyncio.run(serve(config, cache))
    except (ConfigError, ForerunError) as error:
        print(f"forerun draft: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
