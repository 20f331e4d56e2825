"""Puts a target service together from its settings, and runs it. `python -m target_service` and tests both do it so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from forerun.config import TargetConfig
from forerun.rpc import Server
from forerun.runtime.identity import choose_reuse, service_info
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.loading import load_runner, warm_up
from forerun.runtime.model_runner import ModelRunner
from forerun.runtime.packed_linear import pack_linears
from forerun.runtime.sampling import Draw
from forerun.runtime.step_loop import StepLoop
from forerun.telemetry import Tracing
from forerun.v1 import target_pb2_grpc, types_pb2
from target_service.engine import TargetEngine, TargetLimits
from target_service.patience import Patience
from target_service.scheduler import Scheduler
from target_service.service import TargetService
from target_service.step import Step
from target_service.tracing import TargetTrace


class Executor:
    """Begins planned steps on the model: one forward, then the draws. Lives on the worker thread."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def __call__(self, step: Step) -> Callable[[], Sequence[Sequence[Draw]]]:
        requests = [part.draw for part in step.parts if part.draw is not None]
        return self._runner.begin([part.forward for part in step.parts], requests)


@dataclass(frozen=True, slots=True)
class Target:
    """A target that is ready to be served."""

    info: types_pb2.ServiceInfo
    engine: TargetEngine
    loop: StepLoop[Step, Sequence[Sequence[Draw]]]


def assemble(config: TargetConfig, folder: Path, tracing: Tracing, patience: Patience | None = None) -> Target:
    """Loads the model, which takes a while. Raises ForerunErrors that say what is wrong with it."""
    runner = load_runner(config, folder)
    model = runner.model
    pack_linears(model)
    warm_up(config, runner)
    context_length = min(model.context_length, runner.block_count * runner.block_size)
    limits = TargetLimits(
        model.vocabulary_size, context_length, tuple(sorted(model.end_token_ids)), config.max_sessions
    )
    scheduler = Scheduler(patience or Patience(config.max_patience_ms / 1000), config.max_batch_tokens)
    reuse = choose_reuse(config.prefix_reuse, model.device)
    cache = KvCache(runner.block_count, runner.block_size, reuse)
    engine = TargetEngine(limits, cache, scheduler, TargetTrace(tracing), overlaps=runner.overlaps)
    info = service_info(config.model, model, folder, context_length, config.max_sessions)
    return Target(info, engine, StepLoop(engine, Executor(runner), "target-model"))


@asynccontextmanager
async def serving(target: Target, host: str, port: int) -> AsyncIterator[tuple[Server, int]]:
    """Listens and steps for as long as the block lasts; gives the server and its port."""
    server = Server()
    service = TargetService(target.info, target.engine, target.loop.wake)
    server.add(target_pb2_grpc.add_TargetServiceServicer_to_server, service, "forerun.v1.TargetService")
    server.at_stop(service.drain)
    bound = await server.start(host, port)
    async with target.loop.running():
        server.ready()
        try:
            yield server, bound
        finally:
            await server.stop(0)
