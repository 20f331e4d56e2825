"""Measures: for each drafter its services, for each load its variants in turns, for each turn a stretch of requests.

The variants take turns within a load, in another order each time, so that a machine that grows warm or busy slows all
of them alike. All variants send the same prompts with the same seeds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from forerun.bench import gateway, machine
from forerun.bench.client import Call, Said, Sampling, message
from forerun.bench.dataset import Prompt, in_order
from forerun.bench.load import Load, poisson_arrivals, portions
from forerun.bench.records import Deployment, Gpu, Pass, Request, Run
from forerun.bench.variants import Variant, by_drafter, refuse_other_drafters
from forerun.errors import Unavailable
from forerun.v1 import gateway_pb2

Launch = Callable[[str], AbstractAsyncContextManager[gateway.Reachable]]
"""Gives a gateway whose draft service runs the named drafter, as long as the block lasts."""

_GPU_POLL_S = 0.2
_WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    prompts: list[Prompt]
    variants: list[Variant]
    loads: list[Load]
    sampling: Sampling
    requests: int = 0  # a load; zero: four for each at once
    passes: int = 2
    warmup: int = 2
    all_turns: bool = False


class Observer(Protocol):
    """Is told how it goes."""

    def starting(self, drafter: str) -> None: ...

    def measuring(self, drafter: str, variant: Variant, load: Load, turn: str, requests: int) -> None: ...

    def answered(self, request: Request) -> None: ...

    def measured(self, done: Pass) -> None: ...

    def failed(self, drafter: str, reason: str) -> None: ...


async def run(plan: Plan, launch: Launch, into: Run, observer: Observer) -> None:
    """Measures everything into the run. A drafter that does not start is noted; the others are still measured."""
    for drafter, variants in by_drafter(plan.variants).items():
        observer.starting(drafter)
        try:
            async with launch(drafter) as reachable, gateway.Gateway(reachable.address) as door:
                await Bench(plan, drafter, door, reachable.pids, into, observer).measure(variants)
        except Unavailable as failure:
            into.deployments = [known for known in into.deployments if known.drafter != drafter]
            into.deployments.append(Deployment(drafter, failure=failure.message))
            observer.failed(drafter, failure.message)
    into.complete = True


async def run_against(plan: Plan, reachable: gateway.Reachable, into: Run, observer: Observer) -> None:
    """Measures a gateway that runs already. Raises ForerunError if it is away or has another drafter."""
    async with gateway.Gateway(reachable.address) as door:
        draft = gateway.draft_model(await door.status())
        refuse_other_drafters(plan.variants, draft)
        observer.starting(draft)
        await Bench(plan, draft, door, reachable.pids, into, observer).measure(plan.variants)
    into.complete = True


class Bench:
    """All variants of one drafter."""

    def __init__(
        self, plan: Plan, drafter: str, door: gateway.Gateway, pids: dict[str, int], into: Run, observer: Observer
    ) -> None:
        self._plan = plan
        self._drafter = drafter
        self._door = door
        self._pids = pids
        self._into = into
        self._observer = observer
        self._order = in_order(plan.prompts, plan.sampling.seed)
        self._began = time.perf_counter()
        self._timelines: set[str] = set()  # variants of which a request's rounds are kept
        self._status = gateway_pb2.GetStatusResponse()

    async def measure(self, variants: Sequence[Variant]) -> None:
        """Warm-up, then every load."""
        self._status = await self._door.ready(any(variant.speculates for variant in variants))
        self._into.deployments.append(gateway.deployment(self._drafter, self._status))
        for variant in variants:
            await self._warm_up(variant)
        for load in self._plan.loads:
            await self._measure_load(load, variants)

    async def _warm_up(self, variant: Variant) -> None:
        """The first requests are slow, since caches fill and memory is taken. If none is answered there is no point."""
        numbers = self._order[: self._plan.warmup]
        errors = []
        for number in numbers:
            call = self._call(number, 0, keep_timeline=False)
            request = self._message(variant, number, [("user", self._plan.prompts[number].turns[0])])
            request.max_tokens = min(request.max_tokens, _WARM_UP_TOKENS)
            await call.run(self._door.stub, request, self._plan.sampling.timeout_s)
            errors += [call.record.error] if call.record.error else []
        if numbers and len(errors) == len(numbers):
            raise Unavailable(f"no warm-up request of {variant.name} was answered: {errors[-1]}")

    async def _measure_load(self, load: Load, variants: Sequence[Variant]) -> None:
        count = load.requests(self._plan.requests)
        numbers = [self._order[index % len(self._order)] for index in range(count)]
        stretches = portions(numbers, self._plan.passes)
        for index, stretch in enumerate(stretches):
            shift = index % len(variants)
            for variant in (*variants[shift:], *variants[:shift]):
                turn = f"{index + 1}/{len(stretches)}"
                self._observer.measuring(self._drafter, variant, load, turn, len(stretch))
                done = await self._pass(variant, load, index, stretch)
                self._into.passes.append(done)
                self._observer.measured(done)

    async def _pass(self, variant: Variant, load: Load, index: int, numbers: Sequence[int]) -> Pass:
        before = await self._door.counters(self._status)
        requests: list[Request] = []
        async with _gpu_readings() as readings:
            began = time.perf_counter()
            if load.rate:
                await self._open_loop(variant, load, index, numbers, requests)
            else:
                await self._closed_loop(variant, load, numbers, requests)
            wall_s = time.perf_counter() - began
        after = await self._door.counters(self._status)
        return Pass(
            drafter=self._drafter,
            variant=variant.name,
            load=load,
            index=index,
            wall_s=wall_s,
            requests=requests,
            pss_bytes=machine.pss_bytes(self._pids),
            gpus=machine.over_time(readings),
            counters={name: value - before.get(name, 0) for name, value in after.items()},
        )

    async def _closed_loop(self, variant: Variant, load: Load, numbers: Sequence[int], into: list[Request]) -> None:
        waiting = iter(numbers)

        async def worker() -> None:
            for number in waiting:  # shared: each takes the next
                await self._converse(variant, number, into)

        async with asyncio.TaskGroup() as group:
            for _ in range(load.concurrency):
                group.create_task(worker())

    async def _open_loop(
        self, variant: Variant, load: Load, index: int, numbers: Sequence[int], into: list[Request]
    ) -> None:
        began = time.perf_counter()
        arrivals = poisson_arrivals(load.rate, len(numbers), self._plan.sampling.seed + index)
        async with asyncio.TaskGroup() as group:
            for number, due_s in zip(numbers, arrivals, strict=True):
                await asyncio.sleep(max(0.0, began + due_s - time.perf_counter()))
                group.create_task(self._converse(variant, number, into))

    async def _converse(self, variant: Variant, number: int, into: list[Request]) -> None:
        """One prompt: its first turn, or all turns one after the other."""
        turns = self._plan.prompts[number].turns
        said: list[Said] = []
        for turn, text in enumerate(turns if self._plan.all_turns else turns[:1]):
            said.append(("user", text))
            call = self._call(number, turn, keep_timeline=variant.name not in self._timelines)
            self._timelines.add(variant.name)
            request = self._message(variant, number, said)
            await call.run(self._door.stub, request, self._plan.sampling.timeout_s)
            into.append(call.record)
            self._observer.answered(call.record)
            if call.record.error:
                self._timelines.discard(variant.name)  # another request's, then
                return
            said.append(("assistant", call.text))

    def _call(self, number: int, turn: int, keep_timeline: bool) -> Call:
        category = self._plan.prompts[number].category
        return Call(Request(number, turn, category, time.perf_counter() - self._began), keep_timeline)

    def _message(self, variant: Variant, number: int, said: list[Said]) -> gateway_pb2.GenerateRequest:
        return message(variant, self._plan.sampling, said, self._plan.sampling.seed + number)


@asynccontextmanager
async def _gpu_readings() -> AsyncIterator[list[list[Gpu]]]:
    """Readings that go on as long as the block lasts; none where there is no GPU."""
    gpus, readings = machine.Gpus(), list[list[Gpu]]()

    async def watch() -> None:
        while True:
            readings.append(gpus.read())
            await asyncio.sleep(_GPU_POLL_S)

    watching = asyncio.create_task(watch()) if gpus else None
    try:
        yield readings
    finally:
        if watching is not None:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
