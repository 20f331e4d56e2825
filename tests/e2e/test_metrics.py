"""`/metrics` of all three services tells what requests did: the same sums as their usage."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

import gateway.metrics
from forerun import metrics
from forerun.runtime import service_metrics
from tests.trio import HOST, JUNK, MODEL, NONE, RIGHT, Pair, Trio, eventually, generate, request, trio

PROMPT = [5, 6, 7, 8]
WAIT_S = 10.0
PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"


def text_of(port: int) -> str:
    """A page as it is."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=WAIT_S) as page:
        return str(page.read().decode())


@dataclass(frozen=True, slots=True)
class Pages:
    """Where the services' metrics are."""

    target: int
    draft: int
    gateway: int

    async def read(self, port: int) -> dict[str, float]:
        """All samples of a page; labels as in the page's text, but for the model's name."""
        found = {}
        for family in text_string_to_metric_families(await asyncio.to_thread(text_of, port)):
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "model_name")
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found


@asynccontextmanager
async def measured(pair: Pair, kind: str, **settings: Any) -> AsyncIterator[tuple[Trio, Pages]]:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(trio(pair, kind, gateway=settings))
        ports = []
        for node in [*running.targets, *running.drafts]:
            registry = service_metrics.registry_for(node.parts.info, node.parts.engine.read_stats)
            ports.append(stack.enter_context(metrics.serving(registry, HOST, 0)))
        parts = running.gateways[0].parts
        registry = gateway.metrics.registry_for(parts.service, parts.dispatcher)
        ports.append(stack.enter_context(metrics.serving(registry, HOST, 0)))
        yield running, Pages(ports[0], ports[1] if running.drafts else metrics.OFF, ports[-1])


@pytest.mark.parametrize("kind", [MODEL, RIGHT, JUNK, NONE])
def test_the_pages_add_up_to_the_usage_of_requests(pair: Pair, loop: Any, kind: str) -> None:
    async def run() -> None:
        async with measured(pair, kind) as (running, pages):
            stub = running.gateways[0].stub
            asked = [{"max_tokens": 12 + i, "temperature": 0.7, "seed": i} for i in range(4)]
            answers = await asyncio.gather(*(generate(stub, PROMPT, **each) for each in asked))
            await running.wait_until_idle()
            page = await pages.read(pages.gateway)
            usages = [answer.usage for answer in answers]
            committed = sum(len(answer.ids) for answer in answers)
            assert page["vllm:generation_tokens_total"] == committed
            assert page["vllm:prompt_tokens_total"] == len(PROMPT) * len(answers)
            assert page["forerun_rounds_total"] == sum(usage.rounds for usage in usages)
            assert page["vllm:spec_decode_num_draft_tokens_total"] == sum(usage.drafted_tokens for usage in usages)
            assert page["vllm:spec_decode_num_accepted_tokens_total"] == sum(usage.accepted_tokens for usage in usages)
            assert page["forerun_rollbacks_total"] == sum(usage.rollbacks for usage in usages)
            for position, accepted in enumerate(
                map(sum, zip(*(u.accepted_per_position for u in usages), strict=False))
            ):
                name = f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{position={position}}}"
                assert page[name] >= accepted
            assert page["forerun_requests_total{code=ok}"] == page["vllm:e2e_request_latency_seconds_count"] == 4
            assert page["vllm:time_to_first_token_seconds_count"] == 4
            firsts = sum(len(answer.chunks[0].token_ids) for answer in answers)
            assert page["vllm:inter_token_latency_seconds_count"] == committed - firsts
            assert page["vllm:num_requests_running"] == page["vllm:num_requests_waiting"] == 0
            assert page["forerun_replicas{kind=target,state=ready}"] == 1
            assert page["forerun_replicas{kind=draft,state=ready}"] == (kind != NONE)

            target = await pages.read(pages.target)
            assert target["forerun_committed_tokens_total"] == committed
            assert target["forerun_drafted_tokens_total"] == page["vllm:spec_decode_num_draft_tokens_total"]
            assert target["vllm:kv_cache_usage_perc"] == target["forerun_sessions"] == 0
            if kind != NONE:
                draft = await pages.read(pages.draft)
                assert draft["forerun_drafted_tokens_total"] >= target["forerun_drafted_tokens_total"]

    loop.run(run())


def test_requests_that_fail_or_are_left_count_by_their_code(pair: Pair, loop: Any) -> None:
    async def run() -> None:
        async with measured(pair, MODEL) as (running, pages):
            stub = running.gateways[0].stub
            with pytest.raises(grpc.aio.AioRpcError):
                await generate(stub, PROMPT, temperature=-1.0)
            call = stub.Generate(request(PROMPT, max_tokens=400))
            await call.read()
            await call.read()
            during = await pages.read(pages.gateway)
            call.cancel()
            await running.wait_until_idle()
            assert during["vllm:num_requests_running"] == 1
            left = "forerun_requests_total{code=cancelled}"
            page = await eventually(lambda: pages.read(pages.gateway), lambda found: left in found, WAIT_S)
            assert page["forerun_requests_total{code=invalid_argument}"] == 1
            assert page[left] == 1

    loop.run(run())


def test_rules_and_alerts_speak_of_metrics_that_exist(pair: Pair, loop: Any) -> None:
    async def run() -> set[str]:
        async with measured(pair, RIGHT) as (running, pages):
            await generate(running.gateways[0].stub, PROMPT, max_tokens=12)
            await running.wait_until_idle()
            found = [await pages.read(port) for port in (pages.target, pages.draft, pages.gateway)]
            return {name.partition("{")[0] for page in found for name in page}

    exported = loop.run(run())
    named = {
        name
        for file in ("rules.yml", "alerts.yml", "alerts_test.yml")
        for name in re.findall(r"\b(?:vllm:|forerun_)[a-z0-9_:]+", (PROMETHEUS / file).read_text())
    }
    assert len(named) > 8
    assert named <= exported, named - exported


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")


def promtool(*arguments: str, page: str = "") -> tuple[int, list[str]]:
    done = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, input=page, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


@needs_promtool
@pytest.mark.parametrize("arguments", ["check rules rules.yml alerts.yml", "test rules alerts_test.yml"])
def test_rules_and_alerts_do_what_their_tests_say(arguments: str) -> None:
    code, said = promtool(*arguments.split())
    assert code == 0, said


@needs_promtool
def test_promtool_finds_nothing_wrong_with_our_pages(pair: Pair, loop: Any) -> None:
    async def run() -> list[str]:
        async with measured(pair, RIGHT) as (running, pages):
            await generate(running.gateways[0].stub, PROMPT, max_tokens=12)
            return [await asyncio.to_thread(text_of, port) for port in (pages.gateway, pages.target, pages.draft)]

    for page in loop.run(run()):
        _, said = promtool("check", "metrics", page=page)
        assert not [line for line in said if not line.startswith("vllm:")], said  # those names are not ours
