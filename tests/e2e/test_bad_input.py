"""Bad input: every field out of range is refused by name before any model work, and the services go on serving."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from forerun.errors import InvalidArgument, NotFound
from forerun.rpc import from_rpc_error
from forerun.v1 import draft_pb2, gateway_pb2, target_pb2, types_pb2
from tests.trio import MODEL, VOCABULARY_SIZE, Pair, Trio, eventually, generate, read, trio
from tests.wire import DraftWire, TargetWire, Wire, good_sampling

NAN, INFINITY = math.nan, math.inf
CONTEXT_LENGTH = 512
GOOD_PROMPT = [5, 6, 7, 8]

ENTRY_FIELDS: dict[str, list[Any]] = {
    "temperature": [NAN, INFINITY, -INFINITY, -0.1, 100.1],
    "top_k": [(1 << 20) + 1, (1 << 32) - 1],
    "top_p": [NAN, INFINITY, 0.0, -0.1, 1.1],
    "min_p": [NAN, INFINITY, -0.1, 1.1],
    "presence_penalty": [NAN, -INFINITY, -2.1, 2.1],
    "frequency_penalty": [NAN, INFINITY, -2.1, 2.1],
    "repetition_penalty": [NAN, INFINITY, 0.0, -1.0, 0.009, 100.1],
    "logit_bias": [
        {VOCABULARY_SIZE: 1.0},
        {(1 << 32) - 1: 1.0},
        {5: NAN},
        {5: INFINITY},
        {5: 100.5},
        {5: -100.5},
        dict.fromkeys(range(1025), 1.0),
    ],
    "max_tokens": [0, (1 << 32) - 1],
    "min_tokens": [17],
    "stop_token_ids": [[VOCABULARY_SIZE], [(1 << 32) - 1], [5] * 257],
    "logprobs": [21, (1 << 32) - 1],
}
"""Fields that GenerateRequest and SamplingParams share, and values that neither takes. max_tokens is 16."""


def chat(*messages: tuple[str, str]) -> gateway_pb2.Chat:
    return gateway_pb2.Chat(messages=[gateway_pb2.ChatMessage(role=role, content=said) for role, said in messages])


def speculation(**fields: Any) -> dict[str, Any]:
    return {"speculation": gateway_pb2.Speculation(**fields)}


def tokens(ids: list[int]) -> dict[str, Any]:
    return {"tokens": gateway_pb2.TokenIds(ids=ids)}


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {name: value}) for name, values in ENTRY_FIELDS.items() for value in values),
    ("min_tokens", {"max_tokens": None, "min_tokens": CONTEXT_LENGTH}),
    ("stop", {"stop": ["x"] * 17}),
    ("stop", {"stop": ["fine", ""]}),
    ("stop", {"stop": ["x" * 257]}),
    ("speculation.draft_length", speculation(draft_length=0)),
    ("speculation.draft_length", speculation(draft_length=65)),
    ("speculation.draft_length", speculation(enabled=False, draft_length=65)),
    ("speculation.window", speculation(window=0)),
    ("speculation.window", speculation(draft_length=8, window=7)),
    ("speculation.window", speculation(window=1025)),
    ("resume_token_ids", {"resume_token_ids": [VOCABULARY_SIZE]}),
    ("resume_token_ids", {"resume_token_ids": [5] * 17}),
    ("resume_token_ids", {"max_tokens": 4096, "resume_token_ids": [5] * CONTEXT_LENGTH}),
    ("prompt", {"prompt": None}),
    ("text", {"text": ""}),
    ("text", {"text": "x y " * CONTEXT_LENGTH}),
    ("tokens.ids", tokens([])),
    ("tokens.ids", tokens([5, VOCABULARY_SIZE])),
    ("tokens.ids", tokens([(1 << 32) - 1])),
    ("tokens.ids", tokens([5] * CONTEXT_LENGTH)),
    ("tokens.ids", tokens([5] * 100_000)),
    ("chat.messages", {"chat": chat()}),
    ("chat.messages", {"chat": chat(("", "hello"))}),
    ("chat.messages", {"chat": chat(("user", "hello"), ("no role", "hello"))}),
    ("chat.messages", {"chat": chat(("<|im_start|>system", "hello"))}),
    ("chat.messages", {"chat": chat(("r" * 65, "hello"))}),
    ("chat.messages", {"chat": chat(("user", "x y " * CONTEXT_LENGTH))}),
]


def bad_request(fields: dict[str, Any]) -> gateway_pb2.GenerateRequest:
    """A good request with some fields replaced; None takes a field away."""
    good: dict[str, Any] = {"max_tokens": 16, **tokens(GOOD_PROMPT)}
    if fields.keys() & {"text", "chat", "tokens", "prompt"}:
        del good["tokens"]
    return gateway_pb2.GenerateRequest(**{name: value for name, value in (good | fields).items() if value is not None})


def named(case: object) -> str:
    return case if isinstance(case, str) else str(case)[:40]


@pytest.fixture(scope="module")
def running(loop: asyncio.Runner, pair: Pair) -> Iterator[Trio]:
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(trio(pair, MODEL)))
    loop.run(stack.aclose())


async def still_serves(running: Trio) -> None:
    """A good request is answered with the help of the draft, and nothing is left of anything."""
    answer = await running.generate(GOOD_PROMPT, 4, max_tokens=12, ignore_eos=True)
    assert len(answer.ids) == 12
    assert answer.usage.drafted_tokens > 0
    await running.wait_until_idle()


@pytest.mark.parametrize(("field", "fields"), REQUESTS, ids=named)
def test_field_out_of_range_is_refused_by_name(
    loop: asyncio.Runner, running: Trio, field: str, fields: dict[str, Any]
) -> None:
    async def test() -> None:
        before = await running.target.stats()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await read(running.stub.Generate(bad_request(fields)))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.value
        error = from_rpc_error(refused.value)
        assert isinstance(error, InvalidArgument)
        assert error.field == field, error
        assert error.message.startswith(f"{field}: ") and len(error.problem) > 10
        assert (await running.target.stats()).steps == before.steps, "refused only after model work"
        await running.wait_until_idle()

    loop.run(test())


def test_unknown_model_is_not_found(loop: asyncio.Runner, running: Trio) -> None:
    async def test() -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.generate(GOOD_PROMPT, model="some-other")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert isinstance(from_rpc_error(refused.value), NotFound)
        details = refused.value.details()
        assert details is not None and "model" in details and "some-other" in details
        served = running.target.parts.info.model_id
        assert (await running.generate(GOOD_PROMPT, model=served, max_tokens=2)).started.model == served

    loop.run(test())


def test_services_serve_after_all_of_that(loop: asyncio.Runner, running: Trio) -> None:
    async def test() -> None:
        calls = [read(running.stub.Generate(bad_request(fields))) for _, fields in REQUESTS]
        good = asyncio.create_task(running.generate(GOOD_PROMPT, 4, max_tokens=30, ignore_eos=True))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, grpc.aio.AioRpcError) for outcome in outcomes)
        assert len((await good).ids) == 30
        await still_serves(running)
        for node in (running.target, running.draft):
            assert (await node.stats()).failed_sessions == 0, "the gateway let something bad through"

    loop.run(test())


LIMITS: list[dict[str, Any]] = [
    {"temperature": 100.0},
    {"temperature": 1e-30},
    {"top_k": 1 << 20},
    {"top_p": 1e-6},
    {"min_p": 1.0},
    {"presence_penalty": -2.0, "frequency_penalty": 2.0},
    {"repetition_penalty": 0.01},
    {"repetition_penalty": 100.0},
    {"logit_bias": {0: 100.0, VOCABULARY_SIZE - 1: -100.0}},
    {"logit_bias": dict.fromkeys(range(VOCABULARY_SIZE), -100.0)},
    {"max_tokens": 1},
    {"max_tokens": 1 << 31, "ignore_eos": False, "stop_token_ids": list(range(256))},
    {"min_tokens": 16},
    {"stop": ["x" * 256] * 16},
    {"stop": ["\u4e16" * 256]},
    {"stop_token_ids": [*range(64, 320)]},
    {"logprobs": 0},
    {"logprobs": 20},
    {"resume_token_ids": [5] * 16},
    {"resume_token_ids": [VOCABULARY_SIZE - 1] * 15},
    {"seed": 0},
    {"seed": (1 << 64) - 1},
    {"text": "x"},
    {"chat": chat(("user", ""))},
    {"chat": chat(("tool", "anything"), ("r" * 64, "<|im_end|>"))},
    tokens([0]),
    tokens([VOCABULARY_SIZE - 1] * (CONTEXT_LENGTH - 1)),
    speculation(draft_length=1, window=1),
    speculation(draft_length=64, window=1024),
]


@pytest.mark.parametrize("fields", LIMITS, ids=named)
def test_field_at_its_limit_is_served(loop: asyncio.Runner, running: Trio, fields: dict[str, Any]) -> None:
    """With and without a draft, and with the same tokens."""

    async def test() -> None:
        good = bad_request({"temperature": 0.7, "seed": 1} | fields)
        drafted = await read(running.stub.Generate(good))
        good.speculation.Clear()
        good.speculation.enabled = False
        assert (await read(running.stub.Generate(good))).result == drafted.result

    loop.run(test())


# Entries that no gateway of ours would send


async def target_wire(running: Trio) -> TargetWire:
    wire = TargetWire(running.target.stub.Verify())
    await wire.greet()
    return wire


async def draft_wire(running: Trio) -> DraftWire:
    wire = DraftWire(running.draft.stub.Speculate())
    await wire.greet()
    return wire


HELLOS: list[tuple[dict[str, Any], grpc.StatusCode, str]] = [
    ({"protocol_version": 0}, grpc.StatusCode.FAILED_PRECONDITION, "protocol"),
    ({"protocol_version": 2}, grpc.StatusCode.FAILED_PRECONDITION, "protocol"),
    ({"gateway_id": ""}, grpc.StatusCode.INVALID_ARGUMENT, "hello.gateway_id"),
    ({"gateway_id": "g" * 129}, grpc.StatusCode.INVALID_ARGUMENT, "hello.gateway_id"),
    ({"gateway_incarnation": 0}, grpc.StatusCode.INVALID_ARGUMENT, "hello.gateway_incarnation"),
]


def open_call(running: Trio, kind: type[Wire]) -> Any:
    return running.target.stub.Verify() if kind is TargetWire else running.draft.stub.Speculate()


@pytest.mark.parametrize("kind", [TargetWire, DraftWire])
@pytest.mark.parametrize(("fields", "code", "word"), HELLOS, ids=named)
def test_bad_hello_ends_the_stream(
    loop: asyncio.Runner, running: Trio, kind: type[Wire], fields: dict[str, Any], code: grpc.StatusCode, word: str
) -> None:
    async def test() -> None:
        wire = kind(open_call(running, kind))
        await wire.greet(**({"gateway_id": "by-hand"} | fields))
        ended, details = await wire.end()
        assert ended is code
        assert word in details
        await still_serves(running)

    loop.run(test())


@pytest.mark.parametrize("kind", [TargetWire, DraftWire])
def test_hello_must_come_first_and_once(loop: asyncio.Runner, running: Trio, kind: type[Wire]) -> None:
    async def test() -> None:
        late, twice, mute = (kind(open_call(running, kind)) for _ in range(3))
        await late.say(1, close=types_pb2.Close())
        await twice.greet()
        await twice.greet()
        await mute.call.done_writing()
        for wire in (late, twice, mute):
            code, details = await wire.end()
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "hello" in details
        await still_serves(running)

    loop.run(test())


SAMPLINGS = [(name, value) for name, values in ENTRY_FIELDS.items() for value in values]

OPENS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"sampling": good_sampling(**{name: value})}) for name, value in SAMPLINGS),
    ("prompt_token_ids", {"prompt_token_ids": []}),
    ("prompt_token_ids", {"prompt_token_ids": [VOCABULARY_SIZE]}),
    ("output_token_ids", {"output_token_ids": [(1 << 32) - 1]}),
    ("draft_length", {"draft_length": 65}),
]
"""Opens that both services refuse, and the field at fault."""


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        *OPENS,
        ("prompt_token_ids", {"prompt_token_ids": [5] * CONTEXT_LENGTH}),
        ("prompt_token_ids", {"output_token_ids": [5] * 16}),
    ],
    ids=named,
)
def test_bad_open_fails_its_session_on_the_target(
    loop: asyncio.Runner, running: Trio, field: str, fields: dict[str, Any]
) -> None:
    async def test() -> None:
        wire = await target_wire(running)
        good: dict[str, Any] = {"prompt_token_ids": GOOD_PROMPT, "sampling": good_sampling(), "commit_limit": 10}
        await wire.say(1, open=target_pb2.TargetOpen(**(good | fields)))
        failed = await wire.hear()
        assert (failed.session_id, failed.attachment) == (1, 1)
        assert failed.failed.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert failed.failed.detail.startswith(f"{field}: ")
        await wire.say(2, open=target_pb2.TargetOpen(**good))
        served = await wire.hear()
        assert served.session_id == 2 and served.verdict.token_ids
        wire.call.cancel()
        await running.wait_until_idle()

    loop.run(test())


@pytest.mark.parametrize(("field", "fields"), OPENS, ids=named)
def test_bad_open_detaches_its_session_from_the_draft(
    loop: asyncio.Runner, running: Trio, field: str, fields: dict[str, Any]
) -> None:
    async def test() -> None:
        wire = await draft_wire(running)
        good: dict[str, Any] = {"prompt_token_ids": GOOD_PROMPT, "sampling": good_sampling(), "draft_length": 2}
        await wire.say(1, open=draft_pb2.DraftOpen(**(good | fields)))
        detached = await wire.hear()
        assert (detached.session_id, detached.attachment) == (1, 1)
        assert detached.detached.reason == draft_pb2.DETACH_REASON_INVALID
        assert detached.detached.detail.startswith(f"{field}: ")
        await wire.say(2, open=draft_pb2.DraftOpen(**good))
        served = await wire.hear()
        assert served.session_id == 2 and len(served.candidates.token_ids) == 2
        wire.call.cancel()
        await running.wait_until_idle()

    loop.run(test())


def test_prompt_too_long_for_the_draft_detaches_for_good(loop: asyncio.Runner, running: Trio) -> None:
    async def test() -> None:
        wire = await draft_wire(running)
        opening = draft_pb2.DraftOpen(prompt_token_ids=[5] * CONTEXT_LENGTH, sampling=good_sampling(), draft_length=2)
        await wire.say(1, open=opening)
        assert (await wire.hear()).detached.reason == draft_pb2.DETACH_REASON_CONTEXT_LENGTH
        wire.call.cancel()

    loop.run(test())


TARGET_ENTRIES: list[tuple[str, dict[str, Any]]] = [
    ("token_ids", {"candidates": target_pb2.OfferCandidates(epoch=1, start_position=4, token_ids=[VOCABULARY_SIZE])}),
    ("draft_length", {"configure": target_pb2.ConfigureTarget(draft_length=65)}),
]


@pytest.mark.parametrize(("field", "entry"), TARGET_ENTRIES, ids=named)
def test_bad_entry_fails_its_session_on_the_target(
    loop: asyncio.Runner, running: Trio, field: str, entry: dict[str, Any]
) -> None:
    async def test() -> None:
        wire = await target_wire(running)
        # Without leave to commit, both sessions stay as they are.
        opening = target_pb2.TargetOpen(prompt_token_ids=GOOD_PROMPT, sampling=good_sampling(), commit_limit=4)
        await wire.say(1, open=opening)
        await wire.say(2, open=opening)
        await wire.say(1, **entry)
        failed = await wire.hear()
        assert failed.session_id == 1
        assert failed.failed.detail.startswith(f"{field}: ")
        await wire.say(2, configure=target_pb2.ConfigureTarget(commit_limit=6))
        assert (await wire.hear()).session_id == 2
        assert (await running.target.stats()).open_sessions == 1
        wire.call.cancel()
        await still_serves(running)

    loop.run(test())


DRAFT_ENTRIES: list[tuple[str, dict[str, Any]]] = [
    ("token_ids", {"advance": draft_pb2.Advance(start_position=4, token_ids=[VOCABULARY_SIZE])}),
    ("token_ids", {"rollback": draft_pb2.Rollback(start_position=4, token_ids=[(1 << 32) - 1])}),
    ("draft_length", {"configure": draft_pb2.ConfigureDraft(draft_length=65)}),
]


@pytest.mark.parametrize(("field", "entry"), DRAFT_ENTRIES, ids=named)
def test_bad_entry_detaches_its_session_from_the_draft(
    loop: asyncio.Runner, running: Trio, field: str, entry: dict[str, Any]
) -> None:
    async def test() -> None:
        wire = await draft_wire(running)
        opening = draft_pb2.DraftOpen(prompt_token_ids=GOOD_PROMPT, sampling=good_sampling())
        await wire.say(1, open=opening)
        await wire.say(2, open=opening)
        await wire.say(1, **entry)
        detached = await wire.hear()
        assert detached.session_id == 1
        assert detached.detached.reason == draft_pb2.DETACH_REASON_INVALID
        assert detached.detached.detail.startswith(f"{field}: ")
        await wire.say(2, configure=draft_pb2.ConfigureDraft(draft_length=3))
        served = await wire.hear()
        assert served.session_id == 2 and len(served.candidates.token_ids) == 3
        wire.call.cancel()
        await still_serves(running)

    loop.run(test())


def test_entries_out_of_order_change_nothing_on_the_target(loop: asyncio.Runner, running: Trio) -> None:
    """Before the open, after the close, of an older attachment, twice, with a gap, or with nothing in them."""

    async def test() -> None:
        plain = await running.generate(GOOD_PROMPT, 0, max_tokens=3, ignore_eos=True)
        wire = await target_wire(running)
        offer = target_pb2.OfferCandidates(epoch=1, start_position=4, token_ids=plain.ids[:2])
        await wire.say(7, candidates=offer)
        assert (await wire.hear()).WhichOneof("entry") == "unknown_session"
        await wire.say(7, close=types_pb2.Close())
        await wire.say(7, 5)
        opening = target_pb2.TargetOpen(
            prompt_token_ids=GOOD_PROMPT, sampling=good_sampling(max_tokens=3), commit_limit=4, draft_length=2
        )
        await wire.say(7, 5, open=opening)
        await wire.say(7, 5, open=opening)
        await wire.say(7, 4, open=opening)
        await wire.say(7, 4, close=types_pb2.Close())
        await wire.say(7, 4, candidates=target_pb2.OfferCandidates(epoch=9, start_position=4, token_ids=[0, 0]))
        await wire.say(7, 5)
        for start in (5, 1000, (1 << 32) - 1):
            gap = target_pb2.OfferCandidates(epoch=1, start_position=start, token_ids=[0, 0])
            await wire.say(7, 5, candidates=gap)
        await wire.say(7, 5, candidates=offer)
        await wire.say(7, 5, candidates=offer)
        await wire.say(7, 5, configure=target_pb2.ConfigureTarget(commit_limit=7))
        await wire.say(7, 5, configure=target_pb2.ConfigureTarget(commit_limit=0))
        heard: list[int] = []
        while len(heard) < 3:
            entry = await wire.hear()
            assert entry.attachment == 5
            heard += entry.verdict.token_ids
        assert heard == plain.ids
        assert entry.verdict.finish_reason == types_pb2.FINISH_REASON_LENGTH
        wire.call.cancel()
        await still_serves(running)

    loop.run(test())


def test_entries_out_of_order_change_nothing_on_the_draft(loop: asyncio.Runner, running: Trio) -> None:
    async def test() -> None:
        wire = await draft_wire(running)
        for early in (
            {"advance": draft_pb2.Advance(start_position=4, token_ids=[1])},
            {"rollback": draft_pb2.Rollback()},
        ):
            await wire.say(7, **early)
            assert (await wire.hear()).WhichOneof("entry") == "unknown_session"
        await wire.say(7, close=types_pb2.Close())
        opening = draft_pb2.DraftOpen(prompt_token_ids=GOOD_PROMPT, sampling=good_sampling(), draft_length=2)
        await wire.say(7, 5, open=opening)
        first = await wire.hear()
        assert first.candidates.start_position == 4
        await wire.say(7, 5, open=opening)
        await wire.say(7, 4, close=types_pb2.Close())
        await wire.say(7, 5)
        await wire.say(7, 5, advance=draft_pb2.Advance(start_position=9, token_ids=[1]))
        assert (await wire.hear()).need_open.committed_length == 4
        await wire.say(7, 5, advance=draft_pb2.Advance(start_position=0, token_ids=[0]))  # contradicts the prompt
        assert (await wire.hear()).need_open.committed_length == 4
        committed = draft_pb2.Advance(start_position=4, token_ids=first.candidates.token_ids[:1])
        await wire.say(7, 5, advance=committed)
        second = await wire.hear()
        assert second.candidates.epoch == first.candidates.epoch, "a commit that agrees does not roll back"
        await wire.say(7, 5, advance=committed)
        await wire.say(7, 5, rollback=draft_pb2.Rollback(start_position=5, token_ids=[0], refuted_epoch=1))
        third = await wire.hear()
        assert third.candidates.epoch > 1 and third.candidates.start_position == 6
        await wire.say(7, 5, close=types_pb2.Close())
        await wire.say(7, 5, close=types_pb2.Close())
        await running.wait_until_idle()
        wire.call.cancel()
        await still_serves(running)

    loop.run(test())


def test_two_gateways_may_use_the_same_session_numbers(loop: asyncio.Runner, running: Trio) -> None:
    async def test() -> None:
        wires = [TargetWire(running.target.stub.Verify()) for _ in range(2)]
        for number, wire in enumerate(wires):
            await wire.greet(f"gateway-{number}")
            opening = target_pb2.TargetOpen(prompt_token_ids=[5 + number, 6], sampling=good_sampling(), commit_limit=3)
            await wire.say(1, open=opening)
        heard = [(await wire.hear()).verdict.token_ids[0] for wire in wires]
        for number, token_id in enumerate(heard):
            alone = await generate(running.stub, [5 + number, 6], 0, max_tokens=1, ignore_eos=True)
            assert alone.ids == [token_id]
        wires[0].call.cancel()
        await eventually(running.target.stats, lambda stats: stats.open_sessions == 1)
        await wires[1].say(1, configure=target_pb2.ConfigureTarget(commit_limit=4))
        assert (await wires[1].hear()).verdict.start_position == 3
        wires[1].call.cancel()
        await running.wait_until_idle()

    loop.run(test())


def test_newer_stream_of_a_gateway_replaces_the_older(loop: asyncio.Runner, running: Trio) -> None:
    async def test() -> None:
        for kind in (TargetWire, DraftWire):
            older, newer = kind(open_call(running, kind)), kind(open_call(running, kind))
            await older.greet()
            opening: dict[str, Any] = {"prompt_token_ids": GOOD_PROMPT, "sampling": good_sampling()}
            node: Any = running.target if kind is TargetWire else running.draft
            content = target_pb2.TargetOpen(**opening) if kind is TargetWire else draft_pb2.DraftOpen(**opening)
            await older.say(1, open=content)
            await older.say(2, configure={})
            assert (await older.hear()).WhichOneof("entry") == "unknown_session"
            assert (await node.stats()).open_sessions == 1
            await newer.greet()
            assert (await older.end())[0] is grpc.StatusCode.ABORTED
            assert (await node.stats()).open_sessions == 0
            newer.call.cancel()
        await still_serves(running)

    loop.run(test())
