"""Made-up runs: what a drafter with this acceptance and these costs would have shown. No clock, no gateway."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forerun.bench.load import Load
from forerun.bench.records import Deployment, Pass, Request, Round, Run, Speculation
from forerun.bench.variants import OFF, parse_variant

CATEGORIES = ("chat", "code", "summarising", "translation", "extraction", "maths")
WORDS = ("The ", "sky ", "is ", "blue", ",", " and", "\n", "<b>", "light", " &", " scatters")


@dataclass(frozen=True)
class Costs:
    """Milliseconds, and the chance that a candidate is accepted."""

    step_ms: float = 40.0
    accept: float = 0.6
    draft_ms: float = 4.0  # a candidate
    verify_ms: float = 1.0  # a candidate, on top of the step
    per_request_ms: float = 2.0  # each request more at once


def made_up_run(
    variants: Sequence[str] = (OFF, "model:2", "model:4"),
    concurrency: Sequence[int] = (1, 4),
    costs: Mapping[str, Costs] | None = None,
    tokens: int = 64,
    dtype: str = "float32",
    passes: int = 2,
) -> Run:
    """A run in which every variant costs what `costs` says, by name of variant, else the default."""
    run = Run(
        created="2026-01-02 03:04 UTC",
        command="forerun bench --made-up",
        settings={"variants": list(variants), "max_tokens": tokens},
        machine={"cores": 2, "cpu": "made-up CPU", "gpus": [], "busy_cores": 0.1},
        versions={"forerun": "0"},
        variants=list(variants),
        complete=True,
    )
    drafters = list(dict.fromkeys(parse_variant(name).drafter for name in variants if name != OFF)) or ["none"]
    for drafter in drafters:
        run.deployments.append(Deployment(drafter, f"{drafter}-draft", "made-up-target", dtype, "cpu"))
        for load in (Load(concurrency=level) for level in concurrency):
            for index in range(passes):
                for name in variants:
                    if name == OFF or parse_variant(name).drafter == drafter:
                        cost = (costs or {}).get(name, Costs())
                        run.passes.append(_pass(drafter, name, load, index, cost, tokens))
    return run


def _pass(drafter: str, name: str, load: Load, index: int, cost: Costs, tokens: int) -> Pass:
    count = 2 * load.concurrency
    requests = [
        _request(name, number + index * count, cost, load.concurrency, tokens, keep=index == 0 and number == 0)
        for number in range(count)
    ]
    wall_s = sum(request.latency_s for request in requests) / load.concurrency
    return Pass(
        drafter, name, load, index, wall_s, requests, pss_bytes={"target": 900 << 20, "gateway": 90 << 20},
        counters={"draft.drafted_tokens": int(1.3 * sum(request.speculation.drafted for request in requests))},
    )  # fmt: skip


def _request(name: str, number: int, cost: Costs, at_once: int, tokens: int, keep: bool) -> Request:
    draw = random.Random(f"{name}/{number}/{at_once}")
    length = parse_variant(name).draft_length or 0
    category = CATEGORIES[number % len(CATEGORIES)]
    chance = cost.accept + (0.1 if category == "extraction" else 0.0)
    tally = Speculation(drafted_per_position=[0] * length, accepted_per_position=[0] * length)
    request = Request(number, 0, category, float(number), finish_reason="length", prompt_tokens=20, speculation=tally)
    now_ms = 80.0 + draw.uniform(0, 30)
    while request.tokens < tokens:
        accepted = next((place for place in range(length) if draw.random() >= chance), length)
        committed = min(accepted + 1, tokens - request.tokens)
        accepted = min(accepted, committed)
        step = cost.step_ms + length * cost.verify_ms + (at_once - 1) * cost.per_request_ms + draw.uniform(0, 3)
        wait = length * cost.draft_ms + (1.5 if length else 0.0)
        round_ms = step + wait + 1.0
        now_ms += round_ms
        request.token_ids += range(request.tokens, request.tokens + committed)
        request.chunks.append((now_ms / 1e3, committed))
        _tally(tally, length, accepted, committed, round_ms, step, wait, length * cost.draft_ms)
        if keep:
            texts = [draw.choice(WORDS) for _ in range(length + 1)]
            request.timeline.append(
                Round(
                    texts[:length], texts[:committed], accepted, round_ms, step, wait, length * cost.draft_ms, at_once
                )
            )
    request.latency_s = now_ms / 1e3
    return request


def _tally(
    tally: Speculation,
    length: int,
    accepted: int,
    committed: int,
    round_ms: float,
    step: float,
    wait: float,
    draft: float,
) -> None:
    tally.rounds += 1
    tally.drafted += length
    tally.accepted += accepted
    tally.committed += committed
    tally.round_ms += round_ms
    tally.step_ms += step
    tally.wait_ms += wait
    tally.draft_ms += draft
    for place in range(length):
        tally.drafted_per_position[place] += 1
        tally.accepted_per_position[place] += place < accepted
