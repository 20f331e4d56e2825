"""forerun on a CPU beside transformers: `python -m benchmarks.cpu`, or `make bench-cpu`.

The same model, draft, number format, threads and prompts, four ways in one run: `generate`, `generate` with the draft
as its assistant, forerun plain, and forerun with speculation, both through the gateway over gRPC. The four take turns
prompt by prompt, so that whatever else the machine does hits all alike; while one works the others are idle. Greedy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from draft_service.assembly import SHIPPED
from forerun.client import Client
from forerun.config import CacheConfig, resolve
from forerun.model_folder import model_folder

TARGET, DRAFT = "smollm2-135m", "smollm2-135m-draft"
WAYS = ("generate", "assisted", "plain", "speculative")
START_TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: which tokens, in how many seconds from request to the last token."""

    token_ids: tuple[int, ...]
    seconds: float


def prompts(count: int) -> list[str]:
    """The first of each category in turn, from the built-in set."""
    lines = resources.files("forerun.bench").joinpath("prompts.jsonl").read_text().splitlines()
    by_category: dict[str, list[str]] = {}
    for entry in map(json.loads, lines):
        by_category.setdefault(entry["category"], []).append(entry["turns"][0])
    ranks = max(map(len, by_category.values()))
    mixed = [texts[rank] for rank in range(ranks) for texts in by_category.values() if rank < len(texts)]
    return mixed[:count]


def work(dtype: str, threads: int, draft_length: int) -> None:
    """transformers' side, in a process of its own: a line with a job in, a line with its outcome out."""
    import torch
    from transformers import AutoModelForCausalLM

    from forerun.runtime.model import EMBEDDINGS_NAME

    torch.set_num_threads(threads)
    cache = resolve(CacheConfig, {}).folder
    kind = getattr(torch, dtype)
    target = AutoModelForCausalLM.from_pretrained(model_folder(TARGET, cache), dtype=kind).eval()
    draft, report = AutoModelForCausalLM.from_pretrained(SHIPPED / DRAFT, dtype=kind, output_loading_info=True)
    assert EMBEDDINGS_NAME in report["missing_keys"]
    draft.get_input_embeddings().weight = target.get_input_embeddings().weight
    draft.tie_weights()
    draft.eval()
    draft.generation_config.num_assistant_tokens = draft_length
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        ids = torch.tensor([job["token_ids"]])
        options = {"assistant_model": draft} if job["way"] == "assisted" else {}
        started = time.perf_counter()
        with torch.inference_mode():
            out = target.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=job["tokens"], **options
            )
        seconds = time.perf_counter() - started
        print(json.dumps({"token_ids": out[0, ids.shape[1] :].tolist(), "seconds": seconds}), flush=True)


class Worker:
    """The process with transformers in it."""

    def __init__(self, dtype: str, threads: int, draft_length: int) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cpu", "--worker", f"--dtype={dtype}"]
        command += [f"--threads={threads}", f"--draft-length={draft_length}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._read() == "ready\n", "the process with transformers did not start"

    def run(self, way: str, token_ids: Sequence[int], tokens: int) -> Sample:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"way": way, "token_ids": list(token_ids), "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        found = json.loads(self._read())
        return Sample(tuple(found["token_ids"]), found["seconds"])

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def services(dtype: str, threads: int, extra: Sequence[str]) -> Iterator[tuple[str, int]]:
    """`forerun up` on free ports: the gateway's address and the process id of `up`."""
    command = [sys.executable, "-m", "forerun", "up", f"--dtype={dtype}", f"--threads={threads}"]
    command += ["--port=0", "--target-port=0", "--draft-port=0", *extra]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        seen = []
        try:
            for line in process.stdout:
                seen.append(line)
                if found := re.search(r"^ready: gateway on (\S+)", line):
                    break
            else:
                raise SystemExit("forerun up did not start:\n" + "".join(seen[-20:]))
            reading = threading.Thread(target=_read_on, args=(process.stdout,))  # a full pipe would stop the services
            reading.start()
            yield found[1], process.pid
        finally:
            process.terminate()
            process.wait()


def _read_on(log: IO[str]) -> None:
    """What the services log: shown where somebody asked for it, else dropped."""
    for line in log:
        if "FORERUN_LOG_LEVEL" in os.environ:
            sys.stderr.write(line)


def ask(client: Client, prompt: str | Sequence[int], tokens: int, way: str, draft_length: int) -> Sample:
    """One answer through the gateway."""
    options: dict[str, Any] = {"speculate": False} if way == "plain" else {}
    if way == "speculative" and draft_length:
        options["draft_length"] = draft_length
    started = time.perf_counter()
    answer = client.complete(prompt, max_tokens=tokens, temperature=0.0, **options)
    return Sample(tuple(answer.token_ids), time.perf_counter() - started)


def measure(arguments: argparse.Namespace, client: Client, worker: Worker) -> dict[str, list[Sample]]:
    """All ways, taking turns prompt by prompt; the first prompt of each warms up and is not counted."""
    found: dict[str, list[Sample]] = {way: [] for way in WAYS}
    for index, prompt in enumerate([*prompts(1), *prompts(arguments.prompts)]):
        token_ids = client.complete(prompt, max_tokens=1, temperature=0.0).started.prompt_token_ids
        for turn in range(len(WAYS)):
            way = WAYS[(index + turn) % len(WAYS)]
            if way in ("generate", "assisted"):
                sample = worker.run(way, token_ids, arguments.tokens)
            else:
                sample = ask(client, token_ids, arguments.tokens, way, arguments.fixed_length)
            if index:
                found[way].append(sample)
        if index:
            print(f"\r{index}/{arguments.prompts} prompts", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def speed(samples: Sequence[Sample]) -> float:
    """Tokens a second over all of them."""
    return sum(len(sample.token_ids) for sample in samples) / sum(sample.seconds for sample in samples)


def pss_mb(parent: int) -> dict[str, float]:
    """Proportional memory of the services that `parent` runs, by name, in MB. Empty where /proc does not tell."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                pss = re.search(r"^Pss:\s+(\d+) kB", (folder / "smaps_rollup").read_text(), re.MULTILINE)
                name = re.search(r"(target|draft)_service|gateway", (folder / "cmdline").read_text())
                if pss and name:
                    found[name[0].removesuffix("_service")] = int(pss[1]) / 1024
    return found


def report(arguments: argparse.Namespace, found: dict[str, list[Sample]], memory: dict[str, float]) -> dict[str, Any]:
    """Prints the table; returns its figures."""
    rates = {way: speed(samples) for way, samples in found.items()}
    same = {
        way: sum(a.token_ids == b.token_ids for a, b in zip(samples, found["plain"], strict=True))
        for way, samples in found.items()
    }
    table = Table(title=f"{arguments.dtype}, {arguments.threads} threads, {arguments.prompts} prompts, greedy")
    for heading in ("way", "tok/s", "x generate", "x assisted", "x plain", "same tokens as plain"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for way, rate in rates.items():
        beside = [f"{rate / rates[other]:.2f}" for other in ("generate", "assisted", "plain")]
        table.add_row(way, f"{rate:.1f}", *beside, f"{same[way]} of {len(found[way])}")
    Console(width=100).print(table)
    ratios = [b.seconds / a.seconds for a, b in zip(found["speculative"], found["plain"], strict=True)]
    print(
        f"speculative x plain by prompt: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
    )
    print("memory, PSS MB: " + ", ".join(f"{name} {size:.0f}" for name, size in sorted(memory.items())))
    print(f"together {sum(memory.values()):.0f} MB; load average {os.getloadavg()[0]:.1f}")
    return {"dtype": arguments.dtype, "tokens_per_second": rates, "same_as_plain": same, "pss_mb": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument(
        "--draft", default=f"ngram+{DRAFT}", help="forerun's draft; the assistant is always the shipped model"
    )
    parser.add_argument("--draft-length", type=int, default=4, help="of assisted generation")
    parser.add_argument(
        "--fixed-length", type=int, default=0, help="forerun's draft length; 0 lets the gateway measure"
    )
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.dtype, arguments.threads, arguments.draft_length)
        return
    worker = Worker(arguments.dtype, arguments.threads, arguments.draft_length)
    try:
        with services(arguments.dtype, arguments.threads, ["--draft", arguments.draft]) as (address, pid):
            with Client(address) as client:
                found = measure(arguments, client, worker)
            figures = report(arguments, found, pss_mb(pid))
    finally:
        worker.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
