"""Measuring against a gateway without models."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from forerun.bench import machine, records
from forerun.bench.client import Sampling
from forerun.bench.dataset import parse
from forerun.bench.gateway import Reachable
from forerun.bench.load import Load
from forerun.bench.progress import Screen, expected_requests
from forerun.bench.records import Run
from forerun.bench.runner import Plan, run, run_against
from forerun.bench.summary import summarise
from forerun.bench.variants import parse_variants
from forerun.errors import FailedPrecondition, Unavailable
from tests.forerun.bench.conftest import SpeculatingGateway

PROMPTS = "".join(
    f'{{"turns": ["{word}", "more"], "category": "{word[0]}"}}\n' for word in ("ash", "bay", "cob", "oak")
)
PLAN = Plan(
    prompts=parse(PROMPTS, "test"),
    variants=parse_variants("off,draft:2,draft:4"),
    loads=[Load(concurrency=1), Load(concurrency=3)],
    sampling=Sampling(max_tokens=12, temperature=0.0, seed=5, timeout_s=30),
    warmup=1,
)


def empty_run(plan: Plan) -> Run:
    return Run("now", "forerun bench", {}, machine.describe(), {}, [variant.name for variant in plan.variants])


def measured(plan: Plan, gateway: SpeculatingGateway) -> Run:
    into = empty_run(plan)
    with Screen(Console(quiet=True), expected_requests(plan, together=True)) as screen:
        asyncio.run(run_against(plan, Reachable(gateway.address), into, screen))
    return into


def test_every_variant_sends_the_same_requests_in_turns(gateway: SpeculatingGateway) -> None:
    done = measured(PLAN, gateway)
    assert done.complete
    assert [(one.load.concurrency, one.index, one.variant) for one in done.passes[:6]] == [
        (1, 0, "off"), (1, 0, "draft:2"), (1, 0, "draft:4"), (1, 1, "draft:2"), (1, 1, "draft:4"), (1, 1, "off"),
    ]  # fmt: skip
    sent: dict[str, list[int]] = {}
    for one in done.passes:
        sent.setdefault(one.variant, []).extend(sorted(request.prompt for request in one.requests))
    assert sent["off"] == sent["draft:2"] == sent["draft:4"]
    assert len(sent["off"]) == 4 + 12 == expected_requests(PLAN, together=True) / 3
    assert gateway.most_at_once <= 3
    assert {request.seed for request in gateway.requests} == {5, 6, 7, 8}
    lengths = {(one.speculation.enabled, one.speculation.draft_length) for one in gateway.requests}
    assert lengths == {(False, 0), (True, 2), (True, 4)}
    assert all(one.include_rounds and one.speculation.HasField("enabled") for one in gateway.requests)


def test_as_many_requests_are_under_way_as_the_level_says(gateway: SpeculatingGateway) -> None:
    gateway.together = threading.Barrier(3)
    plan = replace(PLAN, loads=[Load(concurrency=3)], variants=parse_variants("off"), warmup=0)
    done = measured(plan, gateway)
    assert gateway.most_at_once == 3
    assert not any(request.error for one in done.passes for request in one.requests)


def test_what_a_client_sees_is_written_down(gateway: SpeculatingGateway) -> None:
    done = measured(replace(PLAN, loads=[Load(concurrency=1)]), gateway)
    request = next(one for one in done.passes if one.variant == "draft:2").requests[0]
    assert [count for _, count in request.chunks] == [1, 3, 1, 3, 1, 3]
    assert request.tokens == 12 and request.finish_reason == "length" and not request.error
    tally = request.speculation
    assert (tally.rounds, tally.drafted, tally.accepted, tally.committed) == (6, 12, 6, 12)
    assert (tally.round_ms, tally.step_ms, tally.wait_ms, tally.draft_ms) == (60, 42, 12, 9)
    assert request.ttft_s is not None and request.tpot_s is not None
    last = request.chunks[-1][0]
    assert 0 < request.ttft_s <= last <= request.latency_s
    assert len(request.itl_s) == 11 and sum(request.itl_s) == pytest.approx(last - request.ttft_s)
    assert request.tpot_s == pytest.approx(sum(request.itl_s) / 11)
    assert len(request.timeline) == 6
    kept = [request for one in done.passes for request in one.requests if request.timeline]
    assert len(kept) == 3  # one a variant


def test_outputs_are_compared_with_plain_decoding(gateway: SpeculatingGateway) -> None:
    cells = summarise(measured(PLAN, gateway)).cells
    assert all(cell.identical == cell.compared for cell in cells.values())
    assert cells["draft:2", Load(concurrency=1)].compared == 4
    gateway.changed_by = "oak"
    cell = summarise(measured(PLAN, gateway)).cells["draft:2", Load(concurrency=1)]
    assert (cell.identical, cell.compared) == (3, 4)


def test_failures_are_counted_and_count_in_no_figure(gateway: SpeculatingGateway) -> None:
    prompts = parse(PROMPTS + '{"prompt": "FAIL"}\n', "test")
    plan = replace(PLAN, prompts=prompts, requests=5, loads=[Load(concurrency=1)], warmup=0)
    summary = summarise(measured(plan, gateway))
    cell = summary.cells["off", Load(concurrency=1)]
    assert (cell.requests, cell.errors, cell.tokens) == (4, 1, 48)
    assert summary.errors == {"RESOURCE_EXHAUSTED: the queue is full": 3}


def test_requests_arrive_at_their_own_times(gateway: SpeculatingGateway) -> None:
    plan = replace(PLAN, loads=[Load(rate=2000.0)], requests=8, variants=parse_variants("off"), passes=1)
    (one,) = measured(plan, gateway).passes
    assert len(one.requests) == 8 and not any(request.error for request in one.requests)
    assert one.load.label == "2000 requests/s"


def test_all_turns_carry_the_answers_so_far(gateway: SpeculatingGateway) -> None:
    plan = replace(PLAN, all_turns=True, variants=parse_variants("off"), loads=[Load(concurrency=1)], warmup=0)
    done = measured(plan, gateway)
    assert [request.turn for request in done.passes[0].requests] == [0, 1, 0, 1]
    second = gateway.requests[1].chat.messages
    assert [(said.role, said.content) for said in second[1:]] == [("assistant", "c" * 12), ("user", "more")]


def test_another_drafter_than_the_gateways_is_refused_before_any_request(gateway: SpeculatingGateway) -> None:
    with pytest.raises(FailedPrecondition, match="this gateway has the draft small"):
        measured(replace(PLAN, variants=parse_variants("off,ngram:4")), gateway)
    assert not gateway.requests


def test_nobody_there_is_said_so() -> None:
    with pytest.raises(Unavailable, match=r"no gateway answers at 127\.0\.0\.1:1"):
        measured(PLAN, SpeculatingGateway(address="127.0.0.1:1"))


def test_a_drafter_that_does_not_start_is_noted_and_the_others_are_measured(gateway: SpeculatingGateway) -> None:
    @asynccontextmanager
    async def started(drafter: str) -> AsyncIterator[Reachable]:
        if drafter == "broken":
            raise Unavailable("its services did not start")
        yield Reachable(gateway.address)

    def launch(drafter: str) -> AbstractAsyncContextManager[Reachable]:
        return started(drafter)

    plan = replace(PLAN, variants=parse_variants("off,broken:4,model:4"), loads=[Load(concurrency=1)])
    into = empty_run(plan)
    with Screen(Console(quiet=True), 1) as screen:
        asyncio.run(run(plan, launch, into, screen))
    assert [(one.drafter, one.failure) for one in into.deployments] == [
        ("broken", "its services did not start"),
        ("model", ""),
    ]
    assert {one.variant for one in into.passes} == {"off", "model:4"}
    assert into.complete


def test_a_run_is_the_same_after_writing_and_reading(gateway: SpeculatingGateway, tmp_path: Path) -> None:
    done = measured(replace(PLAN, loads=[Load(concurrency=1)]), gateway)
    records.save(done, tmp_path / "bench.json")
    again = records.restore(tmp_path / "bench.json")
    records.save(again, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "bench.json").read_text()
    assert again.passes[0].load == Load(concurrency=1)
    assert again.passes[1].requests[0].speculation == done.passes[1].requests[0].speculation


def test_memory_is_read_where_it_can_be() -> None:
    found = machine.pss_bytes({"self": os.getpid(), "nobody": 1 << 30})
    with suppress(FileNotFoundError):
        Path("/proc/self/smaps_rollup").read_text()
        assert list(found) == ["self"] and found["self"] > 1 << 20


class FakeNvml:
    """What we use of pynvml: one GPU that gets busier with every reading."""

    def __init__(self) -> None:
        self.readings = 0

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return "handle"

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"Big GPU"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        self.readings += 1
        return SimpleNamespace(used=self.readings << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=20 * self.readings)


def test_gpus_are_read_through_nvml_where_it_is(gateway: SpeculatingGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    gpus = machine.Gpus()
    assert gpus
    (over_all,) = machine.over_time([gpus.read(), gpus.read(), gpus.read()])
    assert (over_all.name, over_all.used_mib, round(over_all.utilisation, 6)) == ("Big GPU", 3072, 0.4)
    (one, _) = measured(replace(PLAN, loads=[Load(concurrency=1)], variants=parse_variants("off")), gateway).passes
    assert [gpu.name for gpu in one.gpus] == ["Big GPU"]


def test_without_nvml_gpus_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not machine.Gpus() and machine.Gpus().read() == [] and machine.over_time([]) == []
