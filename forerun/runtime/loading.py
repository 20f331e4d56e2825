"""From settings to a model that is ready to run: threads, device, number format, weights, cache."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from rich.console import Console
from rich.progress import Progress

from forerun.config import DraftConfig, TargetConfig
from forerun.logs import event
from forerun.runtime.compiled import compile_layers
from forerun.runtime.fused import fuse
from forerun.runtime.identity import choose_device, choose_dtype
from forerun.runtime.model import LoadedModel, load_model
from forerun.runtime.model_runner import ModelRunner, default_block_count

logger = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def on_passing_thread(
    function: Callable[Parameters, Result], *arguments: Parameters.args, **options: Parameters.kwargs
) -> Result:
    """Runs a slow function beside the event loop, on a thread that ends with it.

    OpenMP keeps a team of threads for every thread that has computed something. With two teams and as many threads as
    cores each, libgomp lets its threads sleep between products instead of spinning, and every later step on the
    worker takes a quarter longer. A team ends with its thread.
    """
    with ThreadPoolExecutor(1) as passing:
        return await asyncio.get_running_loop().run_in_executor(passing, lambda: function(*arguments, **options))


def load_runner(config: TargetConfig | DraftConfig, folder: Path, embeddings_from: Path | None = None) -> ModelRunner:
    """Loads the model with a progress bar on a terminal. Raises ForerunErrors that say what is wrong with it."""
    device = choose_device(config.device)
    threads = config.threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(f"loading {config.model}", total=None)
        model = load_model(
            folder,
            choose_dtype(config.dtype, device, guesses=isinstance(config, DraftConfig)),
            device,
            embeddings_from,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    if device.type != "cpu":  # there it changes nothing that can be measured; see docs/log.md
        fuse(model)
    block_count = -(-config.kv_cache_tokens // config.block_size) or default_block_count(
        model, config.block_size, config.max_sessions, config.memory_share
    )
    runner = _runner(config, model, block_count)
    event(
        logger,
        "model_loaded",
        model=config.model,
        device=str(device),
        dtype=str(model.dtype).removeprefix("torch."),
        threads=threads,
        parameters=model.parameter_count,
        weights_mb=model.parameter_bytes >> 20,
        kv_cache_tokens=block_count * config.block_size,
        kv_cache_mb=block_count * config.block_size * model.kv_bytes_per_token >> 20,
    )
    return runner


def _runner(config: TargetConfig | DraftConfig, model: LoadedModel, block_count: int) -> ModelRunner:
    """The runner for the model's device."""
    if model.device.type != "cuda":
        return ModelRunner(model, block_count, config.block_size)
    from forerun.runtime.graph_runner import GraphRunner  # needs Triton, which only a torch for GPUs brings
    from forerun.runtime.step_shapes import Shapes

    deterministic = isinstance(config, TargetConfig) and config.deterministic == "on"
    shapes = Shapes(config.max_sessions, config.max_batch_tokens, deterministic)
    return GraphRunner(model, block_count, config.block_size, shapes)


def warm_up(config: TargetConfig | DraftConfig, runner: ModelRunner) -> None:
    """On a GPU compiles the layers and captures the steps, with a progress bar on a terminal; elsewhere nothing."""
    if runner.model.device.type != "cuda" or config.eager == "on":
        return
    from forerun.runtime.graph_runner import GraphRunner

    assert isinstance(runner, GraphRunner)
    compile_layers(runner.model)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("compiling and capturing steps", total=None)
        runner.capture(
            isinstance(config, DraftConfig), lambda done, total: bar.update(task, completed=done, total=total)
        )
