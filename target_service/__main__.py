"""`python -m target_service`: reads the settings, loads the model, serves until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from forerun import logs, telemetry
from forerun.config import CacheConfig, ConfigError, TargetConfig, add_flags, resolve
from forerun.errors import ForerunError
from forerun.logs import event
from forerun.model_folder import model_folder
from forerun.rpc import Server
from forerun.runtime.identity import service_info
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.loading import load_runner
from forerun.runtime.model_runner import ModelRunner
from forerun.runtime.sampling import Draw, draw
from forerun.runtime.step_loop import StepLoop
from forerun.v1 import target_pb2_grpc
from target_service.engine import Step, TargetEngine, TargetLimits
from target_service.patience import Patience
from target_service.scheduler import Scheduler
from target_service.service import TargetService
from target_service.tracing import TargetTrace

logger = logging.getLogger("target")


class Executor:
    """Runs planned steps on the model: one forward, then the draws. Lives on the worker thread."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def __call__(self, step: Step) -> Sequence[Sequence[Draw]]:
        logits = self._runner.forward([part.forward for part in step.parts])
        requests = [part.draw for part in step.parts if part.draw is not None]
        return draw(logits, requests) if requests else []


async def serve(config: TargetConfig, folder: Path) -> None:
    """Serves until a signal."""
    tracing = telemetry.setup("forerun-target")
    server = Server()
    runner = await asyncio.to_thread(load_runner, config, folder)
    model = runner.model
    context_length = min(model.context_length, runner.block_count * runner.block_size)
    limits = TargetLimits(
        model.vocabulary_size, context_length, tuple(sorted(model.end_token_ids)), config.max_sessions
    )
    scheduler = Scheduler(Patience(config.max_patience_ms / 1000), config.max_batch_tokens)
    cache = KvCache(runner.block_count, runner.block_size)
    engine = TargetEngine(limits, cache, scheduler, TargetTrace(tracing))
    loop = StepLoop(engine, Executor(runner), "target-model")
    info = service_info(config.model, model, folder, context_length, config.max_sessions)
    server.add(
        target_pb2_grpc.add_TargetServiceServicer_to_server,
        TargetService(info, engine, loop.wake),
        "forerun.v1.TargetService",
    )
    port = await server.start(config.host, config.port)
    stepping = asyncio.create_task(loop.run())
    server.ready()
    event(logger, "listening", address=f"{config.host}:{port}", model=config.model, context_length=context_length)
    try:
        await server.serve_until_signal(config.grace_s)
    finally:
        stepping.cancel()
        tracing.shutdown()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="forerun target", description=__doc__)
    add_flags(parser, TargetConfig)
    add_flags(parser, CacheConfig)
    flags = vars(parser.parse_args(arguments))
    logs.setup("target")
    try:
        config = resolve(TargetConfig, flags, prefix="target")
        folder = model_folder(config.model, resolve(CacheConfig, flags).folder)
        asyncio.run(serve(config, folder))
    except (ConfigError, ForerunError) as error:
        print(f"forerun target: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
