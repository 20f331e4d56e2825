"""What one step costs on a GPU, beside its floor: `python -m benchmarks.step_time --target FOLDER [--draft FOLDER]`.

For each batch of sequences and tokens a sequence: the time on the GPU (events around the graph), the time that the
worker takes (a batch in, tokens out), and the floor: the bytes of the weights and of the keys and values read, at the
rate that a device-to-device copy reaches in this run. A draft is timed as whole runs of steps. Seed 0; medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from forerun.config import DraftConfig, TargetConfig
from forerun.runtime.graph_runner import GraphRunner
from forerun.runtime.loading import load_runner, warm_up
from forerun.runtime.model_runner import ForwardSlice
from forerun.runtime.sampling import DrawRequest
from forerun.sampling_params import SamplingParams

COPY_BYTES = 4 << 30
REPEATS = 60


def copy_rate() -> float:
    """Bytes a second of a large copy on the device, read and written counted."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    seconds = gpu_seconds(lambda: target.copy_(source), 5)
    return 2 * COPY_BYTES / seconds


def gpu_seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median of the time between two events around `work`."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()  # type: ignore[no-untyped-call]
        work()
        end.record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)  # type: ignore[no-untyped-call]
    return statistics.median(times)


def host_seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median of the time of a call."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def batch(
    runner: GraphRunner, sequences: int, tokens: int, context: int, params: SamplingParams, verify: bool
) -> tuple[list[ForwardSlice], list[DrawRequest]]:
    """`tokens` new tokens in each of `sequences` sequences of `context` tokens; all are drawn after, or the last."""
    generator = random.Random(0)
    width = -(-(context + 16) // runner.block_size)
    slices, requests = [], []
    for number in range(sequences):
        token_ids = [generator.randrange(runner.model.vocabulary_size) for _ in range(context)]
        start, rows = context - tokens, tokens if verify else 1
        blocks = tuple(range(number * width, (number + 1) * width))
        slices.append(ForwardSlice(tuple(token_ids[start:]), start, blocks, rows))
        requests.append(DrawRequest(params, token_ids, 8, context - rows + 1, rows))
    return slices, requests


def kv_bytes(runner: GraphRunner, sequences: int, context: int) -> int:
    return sequences * context * runner.model.kv_bytes_per_token


def time_target(runner: GraphRunner, table: Table, rate: float, context: int) -> None:
    cases = [(1, 1), (1, 5), (1, 8), (4, 1), (4, 5), (16, 1), (16, 5), (64, 1), (64, 5), (1, 256)]
    for sequences, tokens in cases:
        slices, requests = batch(runner, sequences, tokens, context, SamplingParams(0.0), verify=tokens <= 8)
        runner.draw(slices, requests)
        captured = runner.captured_for(slices)
        on_gpu = gpu_seconds(captured.graph.replay) if captured else float("nan")
        on_host = host_seconds(lambda: runner.draw(slices, requests))  # noqa: B023 - called before the next turn
        floor = (runner.model.parameter_bytes + kv_bytes(runner, sequences, context)) / rate
        table.add_row(
            f"{sequences} x {tokens}", *(f"{1e3 * s:.2f}" for s in (floor, on_gpu, on_host)), f"{on_gpu / floor:.2f}"
        )
    for name, params in (("temperature", SamplingParams(0.8, seed=1)), ("top-p", SamplingParams(0.8, top_p=0.95))):
        slices, requests = batch(runner, 16, 5, context, params, verify=True)
        on_host = host_seconds(lambda: runner.draw(slices, requests))  # noqa: B023
        table.add_row(f"16 x 5, {name}", "", "", f"{1e3 * on_host:.2f}", "")


def time_draft(runner: GraphRunner, table: Table, rate: float, context: int) -> None:
    for sequences, steps in ((1, 2), (1, 4), (1, 6), (4, 4), (16, 4)):
        slices, requests = batch(runner, sequences, 1, context, SamplingParams(0.0), verify=False)
        assert runner.chain(slices, requests, [steps] * sequences) is not None, "no graph for this"
        graph = runner.chain_for(slices, steps).graph
        on_gpu = gpu_seconds(graph.replay)
        on_host = host_seconds(lambda: runner.chain(slices, requests, [steps] * sequences))  # noqa: B023
        floor = steps * (runner.model.parameter_bytes + kv_bytes(runner, sequences, context)) / rate
        table.add_row(
            f"draft of {steps}, {sequences} at once",
            *(f"{1e3 * s:.2f}" for s in (floor, on_gpu, on_host)),
            f"{on_gpu / floor:.2f}",
        )


def profile(runner: GraphRunner, sequences: int, tokens: int, context: int) -> Table:
    """Where the GPU's time goes in one step, by kernel."""
    slices, requests = batch(runner, sequences, tokens, context, SamplingParams(0.0), verify=True)
    runner.draw(slices, requests)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as taken:
        for _ in range(3):
            runner.draw(slices, requests)
    table = Table(title=f"kernels of a step of {sequences} x {tokens}")
    for heading in ("ms", "launches", "kernel"):
        table.add_column(heading)
    found = sorted(taken.key_averages(), key=lambda kernel: -kernel.device_time_total)
    for kernel in found[:16]:
        table.add_row(f"{kernel.device_time_total / 3e3:.3f}", str(kernel.count // 3), kernel.key[:90])
    total = sum(kernel.device_time_total for kernel in found) / 3e3
    table.add_row(f"{total:.3f}", str(sum(kernel.count for kernel in found) // 3), "together")
    return table


def runner_for(config: TargetConfig | DraftConfig, folder: Path) -> GraphRunner:
    started = time.perf_counter()
    runner = load_runner(config, folder)
    loaded = time.perf_counter()
    warm_up(config, runner)
    assert isinstance(runner, GraphRunner), "steps are captured on a GPU"
    print(f"{folder.name}: loaded in {loaded - started:.1f} s, warm in {time.perf_counter() - loaded:.1f} s")
    return runner


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--draft", type=Path, metavar="FOLDER", help="a checkpoint with embeddings of its own")
    parser.add_argument("--context", type=int, default=512, help="tokens of each sequence [%(default)s]")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args(arguments)
    console = Console(width=140)
    rate = copy_rate()
    table = Table(title=f"{torch.cuda.get_device_name()}, {rate / 1e12:.2f} TB/s, context {given.context}; ms a step")
    for heading in ("sequences x tokens", "floor", "GPU", "GPU and host", "GPU x floor"):
        table.add_column(heading, justify="right")
    config = TargetConfig(deterministic="on" if given.deterministic else "off")
    runner = runner_for(config, given.target)
    time_target(runner, table, rate, given.context)
    if given.profile:
        for sequences, tokens in ((1, 1), (16, 5)):
            console.print(profile(runner, sequences, tokens, given.context))
    if given.draft is not None:
        time_draft(runner_for(DraftConfig(), given.draft), table, rate, given.context)
    console.print(table)


if __name__ == "__main__":
    main()
