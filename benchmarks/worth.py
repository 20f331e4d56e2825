"""Whether speculation pays, and never costs: `python -m benchmarks.worth`, with `--junk` for a draft of no use.

Blocks of requests with speculation left to the gateway and blocks with it off, taking turns, at each concurrency, from
a fresh start of the services. The gateway may need the first blocks to learn what speculation brings; they are shown
apart. Greedy, every answer of the same length, so that blocks hold the same work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.cpu import DRAFT, prompts, services
from draft_service.assembly import SHIPPED
from forerun.client import AsyncClient


@contextlib.contextmanager
def junk() -> Iterator[str]:
    """A checkpoint like the shipped draft's with random weights; seed 0."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="forerun-junk-") as folder:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(SHIPPED / DRAFT))
        model.save_pretrained(folder)
        for name in ("forerun.json", "token_ranking.safetensors"):
            (Path(folder) / name).write_bytes((SHIPPED / DRAFT / name).read_bytes())
        yield folder


async def block(client: AsyncClient, concurrency: int, requests: int, tokens: int, speculate: bool) -> float:
    """Output tokens a second over `requests` requests."""
    texts = prompts(requests)
    waiting = iter(texts)

    async def work() -> None:
        for prompt in waiting:
            await client.complete(prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True, speculate=speculate)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return len(texts) * tokens / (time.perf_counter() - started)


async def measure(arguments: argparse.Namespace, address: str, concurrency: int) -> list[tuple[float, float]]:
    """Tokens a second (off, on), by pair of blocks."""
    requests = max(arguments.requests, 2 * concurrency)
    found = []
    async with AsyncClient(address) as client:
        await block(client, concurrency, concurrency, 8, speculate=False)  # warm-up
        for number in range(arguments.blocks):
            rates = {}
            for speculate in (False, True) if number % 2 else (True, False):
                rates[speculate] = await block(client, concurrency, requests, arguments.tokens, speculate)
            found.append((rates[False], rates[True]))
            print(f"C={concurrency}: off {rates[False]:.1f}, on {rates[True]:.1f} tok/s", file=sys.stderr)
    return found


def ratio(pairs: list[tuple[float, float]]) -> float:
    """On beside off, over all the work of some pairs of blocks."""
    return sum(1 / off for off, _ in pairs) / sum(1 / on for _, on in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--junk", action="store_true", help="a draft with random weights instead of the shipped pair's")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=8, help="a block, at least two for each of the concurrency")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=6, help="pairs of them")
    arguments = parser.parse_args()
    if arguments.blocks < 2:
        parser.error("--blocks must be 2 or more: the first pair is shown apart")
    table = Table(title=f"{'a junk draft' if arguments.junk else 'the shipped pair'}, {arguments.dtype}: on beside off")
    for heading in ("concurrency", "off tok/s", "on tok/s", "first pair", "later pairs, each", "later together"):
        table.add_column(heading, justify="right")
    with contextlib.ExitStack() as stack:
        draft = stack.enter_context(junk()) if arguments.junk else f"ngram+{DRAFT}"
        for concurrency in arguments.concurrency:
            with services(arguments.dtype, os.cpu_count() or 1, ["--draft", draft]) as (address, _):
                pairs = asyncio.run(measure(arguments, address, concurrency))
            later = pairs[1:]
            table.add_row(
                str(concurrency),
                *(f"{statistics.harmonic_mean(rates):.1f}" for rates in zip(*later, strict=True)),
                f"{ratio(pairs[:1]):.3f}",
                " ".join(f"{on / off:.2f}" for off, on in later),
                f"[bold]{ratio(later):.3f}",
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
