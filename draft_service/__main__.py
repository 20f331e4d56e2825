"""`python -m draft_service`: reads the settings, loads the drafter, serves until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from draft_service.drafters.drafter import Drafter
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NgramDrafter
from draft_service.engine import DraftEngine, DraftLimits
from draft_service.service import DraftService
from draft_service.tracing import DraftTracing
from forerun import logs, telemetry
from forerun.config import PROTOCOL_VERSION, CacheConfig, ConfigError, DraftConfig, add_flags, resolve
from forerun.errors import ForerunError
from forerun.logs import event
from forerun.model_folder import model_folder
from forerun.rpc import Server
from forerun.runtime.identity import new_incarnation, service_info
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.loading import load_runner
from forerun.runtime.step_loop import StepLoop
from forerun.v1 import draft_pb2_grpc, types_pb2

logger = logging.getLogger("draft")

NGRAM = "ngram"


def build(config: DraftConfig, cache: Path) -> tuple[Drafter, DraftLimits, types_pb2.ServiceInfo]:
    """The drafter that the settings name, with its limits and its description."""
    if config.model == NGRAM:
        info = types_pb2.ServiceInfo(
            protocol_version=PROTOCOL_VERSION,
            incarnation=new_incarnation(),
            model_id=NGRAM,
            max_sessions=config.max_sessions,
        )
        return NgramDrafter(config.ngram_min, config.ngram_max), DraftLimits(0, 0, (), config.max_sessions), info
    folder, target = model_folder(config.model, cache), model_folder(config.target, cache)
    runner = load_runner(config, folder, embeddings_from=target)
    model = runner.model
    context_length = min(model.context_length, runner.block_count * runner.block_size)
    tokenizer_folder = folder if (folder / "tokenizer.json").is_file() else target
    info = service_info(config.model, model, tokenizer_folder, context_length, config.max_sessions)
    ends = tuple(sorted(model.end_token_ids))
    kv_cache = KvCache(runner.block_count, runner.block_size)
    drafter = ModelDrafter(runner, kv_cache, ends, config.max_batch_tokens)
    return drafter, DraftLimits(model.vocabulary_size, context_length, ends, config.max_sessions), info


async def serve(config: DraftConfig, cache: Path) -> None:
    """Serves until a signal."""
    tracing = telemetry.setup("forerun-draft")
    server = Server()
    drafter, limits, info = await asyncio.to_thread(build, config, cache)
    engine = DraftEngine(limits, drafter, DraftTracing(tracing))
    loop = StepLoop(engine, lambda step: drafter.execute(step.batch), "draft-model")
    server.add(
        draft_pb2_grpc.add_DraftServiceServicer_to_server,
        DraftService(info, engine, loop.wake),
        "forerun.v1.DraftService",
    )
    port = await server.start(config.host, config.port)
    stepping = asyncio.create_task(loop.run())
    server.ready()
    event(logger, "listening", address=f"{config.host}:{port}", model=config.model)
    try:
        await server.serve_until_signal(config.grace_s)
    finally:
        stepping.cancel()
        tracing.shutdown()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="forerun draft", description=__doc__)
    add_flags(parser, DraftConfig)
    add_flags(parser, CacheConfig)
    flags = vars(parser.parse_args(arguments))
    logs.setup("draft")
    try:
        config = resolve(DraftConfig, flags, prefix="draft")
        asyncio.run(serve(config, resolve(CacheConfig, flags).folder))
    except (ConfigError, ForerunError) as error:
        print(f"forerun draft: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
