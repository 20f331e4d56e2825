"""Many sessions on one target: nobody stalls, nobody changes another's text, and what ends frees all it held."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from forerun.errors import Overloaded
from forerun.rpc import channel, from_rpc_error
from forerun.v1 import draft_pb2, gateway_pb2_grpc, target_pb2
from tests.trio import MODEL, NGRAM, NONE, RIGHT, VOCABULARY_SIZE, Answer, Pair, Trio, eventually, read, request, trio
from tests.wire import DraftWire, TargetWire, good_sampling

SEED = 31
FREED_WITHIN_S = 1.0


def make_prompt(source: random.Random, length: int) -> list[int]:
    return [source.randrange(3, VOCABULARY_SIZE) for _ in range(length)]


@pytest.fixture(scope="module")
def running(loop: asyncio.Runner, pair: Pair) -> Iterator[Trio]:
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(trio(pair, MODEL)))
    loop.run(stack.aclose())


# Long prompts


def test_long_prompt_is_prefilled_in_chunks_and_stalls_nobody(loop: asyncio.Runner, pair: Pair) -> None:
    """With 16 tokens a step, a prompt of 400 takes 27 steps beside another session, which has a token from each."""

    async def test() -> None:
        async with trio(pair, NONE, target={"max_batch_tokens": 16}) as services:
            call = services.stub.Generate(request([5, 6, 7], 0, max_tokens=400, ignore_eos=True, include_rounds=True))
            answer = Answer((await call.read()).started)
            answer.chunks.append((await call.read()).chunk)
            before = await services.target.stats()
            long = await services.generate([5] * 400, 0, max_tokens=1, include_rounds=True)
            during = (await services.target.stats()).steps - before.steps
            assert len(long.rounds) == 1 and during >= 27
            rounds = (await read(call, answer)).rounds
            beside = [round for round in rounds if round.batch_size == 2]
            assert 26 <= len(beside) <= 28, "every chunk had the other session beside it"
            assert len(rounds) == (await services.target.stats()).steps, "and no step was without it"

    loop.run(test())


def test_long_prompt_is_drafted_for_in_chunks_too(loop: asyncio.Runner, pair: Pair) -> None:
    async def test() -> None:
        prompts = [make_prompt(random.Random(SEED + number), length) for number, length in enumerate((5, 300, 17, 200))]
        async with trio(pair, MODEL, draft_settings={"max_batch_tokens": 16}) as services:
            plain = [await services.generate(prompt, 0, max_tokens=30) for prompt in prompts]
            together = await asyncio.gather(*(services.generate(prompt, 4, max_tokens=30) for prompt in prompts))
            assert [answer.result for answer in together] == [answer.result for answer in plain]
            assert all(answer.usage.accepted_tokens for answer in together)

    loop.run(test())


# A cache that is too small


@pytest.mark.parametrize("kind", [NONE, MODEL, RIGHT])
def test_preemption_changes_no_output(loop: asyncio.Runner, pair: Pair, kind: str) -> None:
    """Sixteen blocks for eight sessions of five: some lose their cache and are computed again."""
    source = random.Random(SEED)
    prompts = [make_prompt(source, 20) for _ in range(8)]
    fields = {"temperature": 0.9, "max_tokens": 56, "ignore_eos": True}

    async def test() -> None:
        async with trio(pair, kind, target={"kv_cache_tokens": 256}) as services:
            alone = [await services.generate(p, 0, seed=n, **fields) for n, p in enumerate(prompts)]
            assert (await services.target.stats()).preemptions == 0
            for prompt, answer in zip(prompts, alone, strict=True):
                services.teach(prompt, answer.ids)
            calls = [services.generate(p, 4, seed=n, **fields) for n, p in enumerate(prompts)]
            together = await asyncio.gather(*calls)
            assert [answer.result for answer in together] == [answer.result for answer in alone]
            stats = await services.target.stats()
            assert stats.preemptions > 0
            assert kind == NONE or stats.accepted_tokens > 0
            await services.wait_until_idle()

    loop.run(test())


def test_draft_without_room_costs_speed_only(loop: asyncio.Runner, pair: Pair) -> None:
    """The draft has six blocks of cache and four places; those it lets go of decode plainly."""
    source = random.Random(SEED)
    prompts = [make_prompt(source, 20) for _ in range(8)]

    async def test() -> None:
        async with trio(pair, MODEL, draft_settings={"kv_cache_tokens": 96, "max_sessions": 4}) as services:
            alone = [await services.generate(prompt, 0, max_tokens=40, ignore_eos=True) for prompt in prompts]
            calls = [services.generate(prompt, 4, max_tokens=40, ignore_eos=True) for prompt in prompts]
            together = await asyncio.gather(*calls)
            assert [answer.result for answer in together] == [answer.result for answer in alone]
            drafted = [answer.usage.drafted_tokens for answer in together]
            assert any(drafted) and not all(drafted)
            await services.wait_until_idle()

    loop.run(test())


# Prompts that begin alike


@pytest.mark.parametrize("tokens", [8192, 320], ids=["room for all", "a cache that is too small"])
def test_what_was_computed_for_another_request_changes_no_output(loop: asyncio.Runner, pair: Pair, tokens: int) -> None:
    source = random.Random(SEED)
    common = make_prompt(source, 100)
    prompts = [common[: source.randint(20, 100)] + make_prompt(source, source.randint(0, 20)) for _ in range(8)]
    fields = {"temperature": 0.9, "max_tokens": 40, "ignore_eos": True}
    reuse = {"prefix_reuse": "on", "block_size": 4, "kv_cache_tokens": tokens}

    async def test() -> None:
        async with trio(pair, NONE) as services:
            alone = [await services.generate(p, 0, seed=n, **fields) for n, p in enumerate(prompts)]
        async with trio(pair, MODEL, target=reuse, draft_settings=reuse) as services:
            for _ in range(2):
                calls = [services.generate(p, 4, seed=n, **fields) for n, p in enumerate(prompts)]
                together = await asyncio.gather(*calls)
                assert [answer.result for answer in together] == [answer.result for answer in alone]
            assert (await services.target.stats()).reused_prompt_tokens > 200
            assert (await services.draft.stats()).reused_prompt_tokens > 200
            assert ((await services.target.stats()).preemptions > 0) == (tokens == 320)
            await services.wait_until_idle()

    loop.run(test())


# Company


def mixed_settings(source: random.Random) -> dict[str, Any]:
    """Settings of a session that has nothing in common with its neighbours."""
    fields: dict[str, Any] = {
        "max_tokens": source.randint(1, 40),
        "seed": source.getrandbits(64),
        "temperature": source.choice([0.0, 0.0, 0.7, 1.0, 1.3]),
    }
    options: dict[str, Any] = {
        "top_k": source.randint(1, 40),
        "top_p": source.uniform(0.3, 1.0),
        "min_p": source.uniform(0.0, 0.2),
        "presence_penalty": source.uniform(-2, 2),
        "frequency_penalty": source.uniform(-2, 2),
        "repetition_penalty": source.uniform(0.7, 1.5),
        "logit_bias": {source.randrange(VOCABULARY_SIZE): source.uniform(-20, 10) for _ in range(5)},
        "min_tokens": source.randint(0, fields["max_tokens"]),
        "stop_token_ids": [source.randrange(VOCABULARY_SIZE) for _ in range(8)],
        "ignore_eos": True,
        "logprobs": source.randint(0, 5),
        "stop": [source.choice("etaoin")],
    }
    return fields | {name: value for name, value in options.items() if source.random() < 0.4}


@pytest.mark.parametrize("budget", [16, 64, 512])
def test_sessions_do_not_see_each_other(loop: asyncio.Runner, pair: Pair, budget: int) -> None:
    """Sixteen at once, with draft lengths of their own, against each alone; whatever fits into a step."""
    print(f"settings with seed {SEED}")
    source = random.Random(SEED)
    prompts = [make_prompt(source, source.randint(1, 120)) for _ in range(16)]
    settings = [mixed_settings(source) for _ in range(16)]
    lengths = [source.randint(0, 8) for _ in range(16)]

    async def test() -> None:
        batch = {"max_batch_tokens": budget}
        async with trio(pair, MODEL, target=batch, draft_settings=batch) as services:
            alone = [await services.generate(p, 0, **fields) for p, fields in zip(prompts, settings, strict=True)]
            calls = [
                services.generate(prompt, length, **fields)
                for prompt, length, fields in zip(prompts, lengths, settings, strict=True)
            ]
            together = await asyncio.gather(*calls)
            assert [answer.result for answer in together] == [answer.result for answer in alone]
            assert sum(answer.usage.accepted_tokens for answer in together) > 0
            await services.wait_until_idle()

    loop.run(test())


# Overload


async def stalled(services: Trio, draft_length: int | None = None, **options: Any) -> Any:
    """A call in mid-answer whose client does not read on: it stays until it is cancelled or its time is up.

    Its connection takes 16 KiB unread and never more; the usual ones grow, at times to more than the whole answer.
    """
    narrow = (("grpc.http2.lookahead_bytes", 16384), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))
    connection = grpc.aio.insecure_channel(services.gateways[0].address, options=narrow)
    await services.stack.enter_async_context(connection)
    made = request([5, 6, 7], draft_length, max_tokens=500, ignore_eos=True, logprobs=20)
    call = gateway_pb2_grpc.GatewayServiceStub(connection).Generate(made, **options)
    for _ in range(2):
        await call.read()
    return call


def test_overload_is_refused_with_a_time_to_come_back(loop: asyncio.Runner, pair: Pair) -> None:
    async def test() -> None:
        async with trio(pair, NGRAM, gateway={"max_requests": 1, "max_queue": 2, "credit_tokens": 4}) as services:
            held = await stalled(services)
            queued = [asyncio.create_task(services.generate([8, 9], max_tokens=4)) for _ in range(2)]
            await eventually(services.gateways[0].status, lambda status: status.waiting_requests == 2)
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await services.generate([8, 9], max_tokens=4)
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                error = from_rpc_error(refused.value)
                assert isinstance(error, Overloaded) and 0 < error.retry_after_s < 60
            status = await services.gateways[0].status()
            assert (status.running_requests, status.waiting_requests) == (1, 2)
            held.cancel()
            first, second = await asyncio.gather(*queued)
            assert first.result == second.result and len(first.ids) == 4
            await services.wait_until_idle()

    loop.run(test())


def test_request_waits_for_a_place_on_a_full_target(loop: asyncio.Runner, pair: Pair) -> None:
    async def test() -> None:
        async with trio(pair, NGRAM, target={"max_sessions": 1}) as services:
            answers = await asyncio.gather(*(services.generate([8, 9], max_tokens=6) for _ in range(5)))
            assert len({tuple(answer.ids) for answer in answers}) == 1
            await services.wait_until_idle()

    loop.run(test())


def test_place_taken_by_another_gateway_is_waited_for(loop: asyncio.Runner, pair: Pair) -> None:
    async def test() -> None:
        async with trio(pair, NGRAM, target={"max_sessions": 1}, gateway={"credit_tokens": 4}) as services:
            other = await services.start_gateway()
            held = await stalled(services)
            waiting = asyncio.create_task(other.stub.Generate(request([8, 9], max_tokens=6)).read())
            await eventually(lambda: asyncio.sleep(0, other.parts.dispatcher.sessions))
            held.cancel()
            assert (await waiting).WhichOneof("event") == "started"

    loop.run(test())


# Deadlines and cancelling


def test_deadline_in_mid_answer_frees_both_sequences(loop: asyncio.Runner, pair: Pair) -> None:
    async def test() -> None:
        async with trio(pair, MODEL, gateway={"credit_tokens": 4}) as services:
            call = await stalled(services, draft_length=4, timeout=2.0)
            assert (await services.target.stats()).open_sessions == 1
            assert (await services.draft.stats()).open_sessions == 1
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await eventually(services.leftovers, lambda left: not left)
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    loop.run(test())


def test_deadline_in_the_queue_is_kept(loop: asyncio.Runner, pair: Pair) -> None:
    async def test() -> None:
        async with trio(pair, NGRAM, gateway={"max_requests": 1, "credit_tokens": 4}) as services:
            held = await stalled(services)
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await services.generate([8, 9], max_tokens=4, timeout_s=0.2)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await eventually(services.gateways[0].status, lambda status: status.waiting_requests == 0)
            held.cancel()
            await services.wait_until_idle()

    loop.run(test())


def test_services_let_go_by_themselves_when_the_time_is_up(loop: asyncio.Runner, running: Trio) -> None:
    """Even if the gateway never says another word: the deadline came with the open."""

    async def test() -> None:
        target, draft = TargetWire(running.target.stub.Verify()), DraftWire(running.draft.stub.Speculate())
        opening: dict[str, Any] = {"prompt_token_ids": [5, 6], "sampling": good_sampling(), "time_to_live_ms": 1000}
        await target.greet()
        await draft.greet()
        await target.say(1, open=target_pb2.TargetOpen(**opening))
        await draft.say(1, open=draft_pb2.DraftOpen(draft_length=2, **opening))
        assert (await draft.hear()).candidates.token_ids
        for node in (running.target, running.draft):
            await eventually(node.stats, lambda stats: stats.open_sessions == 0 and stats.open_streams == 2)
        for wire in (target, draft):
            wire.call.cancel()
        await running.wait_until_idle()

    loop.run(test())


@pytest.mark.parametrize("draft_length", [0, 4])
@pytest.mark.parametrize("messages", [0, 1, 2, 5])
def test_cancel_frees_both_sequences_within_a_second(
    loop: asyncio.Runner, running: Trio, draft_length: int, messages: int
) -> None:
    """Before the first message, before the first token, in mid-answer."""

    async def test() -> None:
        call = running.stub.Generate(request([5] * 300, draft_length, max_tokens=200, ignore_eos=True))
        for _ in range(messages):
            await call.read()
        call.cancel()
        await running.wait_until_idle(FREED_WITHIN_S)

    loop.run(test())


def test_client_that_goes_away_frees_all_its_sequences(loop: asyncio.Runner, running: Trio) -> None:
    async def test() -> None:
        connection = channel(running.gateways[0].address)
        stub = gateway_pb2_grpc.GatewayServiceStub(connection)
        calls = [stub.Generate(request([5, 6, number], 4, max_tokens=400, ignore_eos=True)) for number in range(6)]
        for call in calls:
            await call.read()
        await eventually(running.target.stats, lambda stats: stats.open_sessions > 0)
        await connection.close()
        await running.wait_until_idle(FREED_WITHIN_S)

    loop.run(test())


def test_session_that_ends_makes_room_while_others_go_on(loop: asyncio.Runner, running: Trio) -> None:
    async def test() -> list[Answer]:
        prompts = [make_prompt(random.Random(number), 10) for number in range(6)]
        alone = [await running.generate(prompt, 0, max_tokens=60, ignore_eos=True) for prompt in prompts]
        calls = [asyncio.create_task(running.generate(p, 4, max_tokens=60, ignore_eos=True)) for p in prompts]
        for leaving in calls[::2]:
            await eventually(running.target.stats, lambda stats: stats.open_sessions > 0)
            leaving.cancel()
        staying = await asyncio.gather(*calls[1::2])
        assert [answer.result for answer in staying] == [answer.result for answer in alone[1::2]]
        await running.wait_until_idle(FREED_WITHIN_S)
        return staying

    loop.run(test())
