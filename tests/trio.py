"""The three services inside one process, for tests that need the real protocol but no real processes.

Everything is what the services' own `__main__` modules run: gRPC servers on free ports, engines, step loops, models.
Only the patience is not: by default the target waits for candidates for as long as it takes, so that what a test sees
of speculation does not depend on the machine. All of it lives on the event loop of whoever enters `trio`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

import draft_service.assembly
import gateway.assembly
import target_service.assembly
from draft_service.drafters.drafter import Proposal, Want
from forerun import telemetry
from forerun.config import DraftConfig, GatewayConfig, TargetConfig
from forerun.rpc import channel
from forerun.telemetry import Tracing
from forerun.v1 import (
    draft_pb2,
    draft_pb2_grpc,
    gateway_pb2,
    gateway_pb2_grpc,
    target_pb2,
    target_pb2_grpc,
    types_pb2,
)
from target_service.patience import Patience
from tests.models import make_tiny_draft, make_tiny_model

HOST = "127.0.0.1"
WAIT_S = 30.0  # for anything that must come; far above what it takes
VOCABULARY_SIZE = 320

MODEL, TWIN, NGRAM, JUNK, RIGHT, NONE = "model", "twin", "ngram", "junk", "right", "none"
"""A blurred copy of the target; its very weights; prompt lookup; random tokens; told the answers; no service at all."""

DRAFTS = (MODEL, TWIN, NGRAM, JUNK, RIGHT, NONE)


# Models


@dataclass(frozen=True, slots=True)
class Pair:
    """The folders of a tiny target and of a draft that agrees with it about every other time."""

    target: Path
    draft: Path


def make_pair(folder: Path, **model: Any) -> Pair:
    """Makes both; `model` goes to `make_tiny_model`."""
    target = make_tiny_model(folder / "target", **model)
    return Pair(target, make_tiny_draft(folder / "draft", target, noise=0.03))


# Drafters without weights


class WeightlessDrafter:
    """Proposes what `propose` says; caches nothing."""

    total_blocks = 0
    used_blocks = 0
    reused_tokens = 0

    def plan(self, wants: Sequence[Want]) -> tuple[list[tuple[tuple[int, ...], int, int]], Sequence[Want]]:
        return [(tuple(want.sequence.token_ids), want.prompt_length, want.most) for want in wants], ()

    def execute(self, batch: list[tuple[tuple[int, ...], int, int]]) -> list[Proposal]:
        return [self.propose(*part) for part in batch]

    def propose(self, token_ids: tuple[int, ...], prompt_length: int, most: int) -> Proposal:
        raise NotImplementedError

    def settle(self, batch: Any, proposals: Sequence[Proposal]) -> None:
        """Nothing is cached."""

    def truncated(self, sequence: Any) -> None:
        """Nothing is cached."""

    def forget(self, sequence: Any) -> None:
        """Nothing is cached."""


class JunkDrafter(WeightlessDrafter):
    """Proposes random tokens of the vocabulary."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def propose(self, token_ids: tuple[int, ...], prompt_length: int, most: int) -> Proposal:
        return Proposal(tuple(self._random.randrange(VOCABULARY_SIZE) for _ in range(most)))


class RightDrafter(WeightlessDrafter):
    """Proposes the answers that it was told, beyond their ends too; has nothing to say about other prompts."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, ...], list[int]] = {}

    def teach(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """From now on `answer` is what follows `prompt`."""
        self.answers[tuple(prompt)] = list(answer)

    def propose(self, token_ids: tuple[int, ...], prompt_length: int, most: int) -> Proposal:
        answer = self.answers.get(token_ids[:prompt_length], [])
        said = len(token_ids) - prompt_length
        return Proposal(tuple(answer[said : said + most]), exhausted=said >= len(answer))


class Waiting(Patience):
    """Waits for candidates for as long as it takes; a draft that never comes is the gateway's to notice."""

    def __init__(self) -> None:
        super().__init__(limit_s=WAIT_S)

    def seconds(self, batch_size: int, rounds_since_wait: int) -> float:
        return WAIT_S


# The services


@dataclass(slots=True)
class TargetNode:
    """A running target service."""

    port: int
    parts: target_service.assembly.Target
    stub: Any
    stop: Callable[[], Any]  # awaitable; safe to repeat

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def stats(self) -> types_pb2.ServiceStats:
        return (await self.stub.GetStats(target_pb2.TargetServiceGetStatsRequest())).stats


@dataclass(slots=True)
class DraftNode:
    """A running draft service."""

    port: int
    parts: draft_service.assembly.Draft
    stub: Any
    stop: Callable[[], Any]  # awaitable; safe to repeat

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def stats(self) -> types_pb2.ServiceStats:
        return (await self.stub.GetStats(draft_pb2.DraftServiceGetStatsRequest())).stats


@dataclass(slots=True)
class GatewayNode:
    """A running gateway."""

    port: int
    parts: gateway.assembly.Gateway
    stub: Any
    stop: Callable[[], Any]  # awaitable; safe to repeat

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def status(self) -> gateway_pb2.GetStatusResponse:
        return await self.stub.GetStatus(gateway_pb2.GetStatusRequest())


@dataclass(slots=True)
class Trio:
    """What runs. Tests may stop single nodes and start more."""

    pair: Pair
    stack: AsyncExitStack
    targets: list[TargetNode] = field(default_factory=list)
    drafts: list[DraftNode] = field(default_factory=list)
    gateways: list[GatewayNode] = field(default_factory=list)
    right: RightDrafter = field(default_factory=RightDrafter)  # told by `teach`

    @property
    def stub(self) -> Any:
        """The first gateway."""
        return self.gateways[0].stub

    @property
    def target(self) -> TargetNode:
        return self.targets[0]

    @property
    def draft(self) -> DraftNode:
        return self.drafts[0]

    def teach(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Tells the draft that is always right what follows `prompt`."""
        self.right.teach(prompt, answer)

    async def generate(self, *args: Any, **kwargs: Any) -> Answer:
        """`generate` through the first gateway."""
        return await generate(self.stub, *args, **kwargs)

    async def start_target(
        self, *, port: int = 0, patience: Patience | None = None, tracing: Tracing | None = None, **settings: Any
    ) -> TargetNode:
        """One more target."""
        config = TargetConfig(
            model=str(self.pair.target), **({"device": "cpu", "threads": 1, "kv_cache_tokens": 8192} | settings)
        )
        parts = target_service.assembly.assemble(
            config, self.pair.target, tracing or telemetry.setup("forerun-target"), patience or Waiting()
        )
        (_, bound), stop = await self._run(target_service.assembly.serving(parts, HOST, port))
        stub = target_pb2_grpc.TargetServiceStub(await self._channel(bound))
        node = TargetNode(bound, parts, stub, stop)
        self.targets.append(node)
        return node

    async def start_draft(
        self, kind: str = MODEL, *, port: int = 0, tracing: Tracing | None = None, **settings: Any
    ) -> DraftNode:
        """One more draft, of a kind in `DRAFTS`."""
        source = self._source(
            kind, {"device": "cpu", "threads": 1, "kv_cache_tokens": 8192, "min_confidence": 0.0} | settings
        )
        parts = draft_service.assembly.assemble(source, tracing or telemetry.setup("forerun-draft"))
        (_, bound), stop = await self._run(draft_service.assembly.serving(parts, HOST, port))
        node = DraftNode(bound, parts, draft_pb2_grpc.DraftServiceStub(await self._channel(bound)), stop)
        self.drafts.append(node)
        return node

    def _source(self, kind: str, settings: dict[str, Any]) -> draft_service.assembly.Source:
        sessions = settings.get("max_sessions", 64)
        if kind == JUNK:
            return draft_service.assembly.weightless(JunkDrafter(), JUNK, sessions)
        if kind == RIGHT:
            return draft_service.assembly.weightless(self.right, RIGHT, sessions)
        model = {MODEL: str(self.pair.draft), TWIN: str(self.pair.target), NGRAM: NGRAM}[kind]
        config = DraftConfig(model=model, target=str(self.pair.target), **{"dtype": "float32"} | settings)
        return draft_service.assembly.load(config, self.pair.target)

    async def start_gateway(self, *, port: int = 0, tracing: Tracing | None = None, **settings: Any) -> GatewayNode:
        """One more gateway, in front of all targets and drafts that run, unless settings say otherwise."""
        found: dict[str, Any] = {
            "targets": tuple(node.address for node in self.targets),
            "drafts": tuple(node.address for node in self.drafts),
            "adaptive": "off",  # a test says itself how long drafts are
        }
        config = GatewayConfig(model=str(self.pair.target), **(found | settings))
        parts = gateway.assembly.assemble(config, self.pair.target, tracing or telemetry.setup("forerun-gateway"))
        running, stop = await self._run(gateway.assembly.serving(parts, HOST, port))
        async with asyncio.timeout(WAIT_S):
            await gateway.assembly.announce(parts, running.server)
        stub = gateway_pb2_grpc.GatewayServiceStub(await self._channel(running.port))
        node = GatewayNode(running.port, parts, stub, stop)
        self.gateways.append(node)
        return node

    async def wait_until_idle(self, timeout_s: float = WAIT_S) -> None:
        """Returns once no service holds anything of any request. Raises AssertionError if that takes too long."""
        await eventually(self.leftovers, lambda left: not left, timeout_s)

    async def leftovers(self) -> list[str]:
        """What services still hold of requests, for people."""
        left = []
        for node in [*self.targets, *self.drafts]:
            stats = await node.stats()
            left += [f"{node.address}: {stats}"] if stats.open_sessions or stats.used_blocks else []
        for node in self.gateways:
            status = await node.status()
            left += [f"{node.address}: {status}"] if status.running_requests or status.waiting_requests else []
            left += [f"{node.address}: sessions"] if node.parts.dispatcher.sessions else []
        return left

    async def _run(self, context: Any) -> tuple[Any, Callable[[], Any]]:
        """Enters a context that ends with the trio, or earlier by calling what is returned."""
        own = await self.stack.enter_async_context(AsyncExitStack())
        return await own.enter_async_context(context), own.aclose

    async def _channel(self, port: int) -> Any:
        return await self.stack.enter_async_context(channel(f"{HOST}:{port}"))


@asynccontextmanager
async def trio(
    pair: Pair,
    draft: str = MODEL,
    *,
    patience: Patience | None = None,
    target: dict[str, Any] | None = None,
    draft_settings: dict[str, Any] | None = None,
    gateway: dict[str, Any] | None = None,
) -> AsyncIterator[Trio]:
    """One target, one draft unless `draft` is NONE, one gateway. The dictionaries hold settings of the services."""
    async with AsyncExitStack() as stack:
        running = Trio(pair, stack)
        await running.start_target(patience=patience, **(target or {}))
        if draft != NONE:
            await running.start_draft(draft, **(draft_settings or {}))
        await running.start_gateway(**(gateway or {}))
        yield running


# Clients


@dataclass(slots=True)
class Answer:
    """All that a request returned."""

    started: gateway_pb2.Started
    chunks: list[gateway_pb2.Chunk] = field(default_factory=list)
    finished: gateway_pb2.Finished | None = None  # None: the stream was left early

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def ids(self) -> list[int]:
        return [token_id for chunk in self.chunks for token_id in chunk.token_ids]

    @property
    def logprobs(self) -> list[types_pb2.TokenLogprobs]:
        return [logprobs for chunk in self.chunks for logprobs in chunk.logprobs]

    @property
    def rounds(self) -> list[gateway_pb2.Round]:
        return [round for chunk in self.chunks for round in chunk.rounds]

    @property
    def reason(self) -> str:
        assert self.finished is not None, "the stream was left early"
        return types_pb2.FinishReason.Name(self.finished.finish_reason).removeprefix("FINISH_REASON_").lower()

    @property
    def usage(self) -> gateway_pb2.SpeculationUsage:
        assert self.finished is not None, "the stream was left early"
        return self.finished.speculation

    @property
    def result(self) -> tuple[list[int], str, str, str, int]:
        """What must be equal with any draft and with none."""
        assert self.finished is not None, "the stream was left early"
        return self.ids, self.text, self.reason, self.finished.stop, self.finished.completion_tokens


def request(prompt: Sequence[int] | str, draft_length: int | None = None, **fields: Any) -> gateway_pb2.GenerateRequest:
    """A request; greedy unless `temperature` is given. `draft_length` 0 is plain decoding."""
    made = gateway_pb2.GenerateRequest(**({"temperature": 0.0} | fields))
    if isinstance(prompt, str):
        made.text = prompt
    else:
        made.tokens.ids.extend(prompt)
    if draft_length == 0:
        made.speculation.enabled = False
    elif draft_length is not None:
        made.speculation.draft_length = draft_length
    return made


async def generate(
    stub: Any, prompt: Sequence[int] | str, draft_length: int | None = None, *, timeout_s: float = WAIT_S, **fields: Any
) -> Answer:
    """Sends `request(...)` and reads the whole answer. Raises grpc.aio.AioRpcError if it fails."""
    return await read(stub.Generate(request(prompt, draft_length, **fields), timeout=timeout_s))


async def read(call: Any, answer: Answer | None = None) -> Answer:
    """The whole answer of a call, or what follows after `answer`; checks the order of its messages."""
    while (response := await call.read()) is not grpc.aio.EOF:
        kind = response.WhichOneof("event")
        if answer is None:
            assert kind == "started", f"the first message is {kind}"
            answer = Answer(response.started)
        elif kind == "chunk":
            assert answer.finished is None, "a chunk after the end"
            answer.chunks.append(response.chunk)
        else:
            assert kind == "finished" and answer.finished is None, f"{kind} after the end"
            answer.finished = response.finished
    assert answer is not None and answer.finished is not None, "the stream ended without `finished`"
    return answer


async def eventually(
    ask: Callable[[], Any], holds: Callable[[Any], bool] = bool, timeout_s: float = WAIT_S, every_s: float = 0.005
) -> Any:
    """The first answer of the coroutine function `ask` for which `holds` does; fails if none comes in time."""
    answer: Any = None
    try:
        async with asyncio.timeout(timeout_s):
            while not holds(answer := await ask()):  # noqa: ASYNC110 (what is asked has no event)
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise AssertionError(f"did not come true within {timeout_s:g} s; last seen: {answer}") from None
    return answer
