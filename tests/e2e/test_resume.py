"""Resuming: a stream that broke after any message goes on with the same tokens and the same text.

A client keeps the prompt's ids, the seed and the ids it received, and asks again with those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.trio import MODEL, Answer, Pair, Trio, make_pair, read, request, trio

DRAFT_LENGTH = 3
PROMPT = [70, 71, 72, 73, 74]
END_TOKEN_IDS = [2, *range(40, 240, 10)]
ASCII_BIAS = {token_id: 90.0 for token_id in range(3, 97) if token_id not in END_TOKEN_IDS}

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True},
    "sampled": {"temperature": 1.0, "seed": 3, "max_tokens": 24, "ignore_eos": True},
    "penalties": {
        "temperature": 0.9,
        "seed": 4,
        "max_tokens": 24,
        "ignore_eos": True,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.2,
    },
    "end token": {"temperature": 1.0, "seed": 1, "max_tokens": 40, "min_tokens": 8, "frequency_penalty": 1.0},
    "logprobs": {"temperature": 1.0, "seed": 6, "max_tokens": 16, "ignore_eos": True, "logprobs": 3},
    "characters": {"temperature": 1.0, "seed": 7, "max_tokens": 24, "ignore_eos": True, "logit_bias": ASCII_BIAS},
}


@pytest.fixture(scope="module")
def resuming_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("resuming"), eos_token_id=END_TOKEN_IDS)


@pytest.fixture(scope="module")
def running(loop: asyncio.Runner, resuming_pair: Pair) -> Iterator[Trio]:
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(trio(resuming_pair, MODEL)))
    loop.run(stack.aclose())


async def cut(running: Trio, messages: int, fields: dict[str, Any]) -> Answer:
    """The first so many chunks of an answer, after which the connection is lost."""
    call = running.stub.Generate(request(PROMPT, DRAFT_LENGTH, **fields))
    answer = Answer((await call.read()).started)
    while len(answer.chunks) < messages:
        answer.chunks.append((await call.read()).chunk)
    call.cancel()
    return answer


async def resume(running: Trio, held: Answer, fields: dict[str, Any]) -> Answer:
    """The rest, asked for with nothing but what the first call returned."""
    again = request(list(held.started.prompt_token_ids), DRAFT_LENGTH, **(fields | {"seed": held.started.seed}))
    again.resume_token_ids.extend(held.ids)
    return await read(running.stub.Generate(again))


def check(whole: Answer, held: Answer, rest: Answer) -> None:
    """Nothing is lost, nothing comes twice, and the figures are those of the whole answer."""
    assert held.ids + rest.ids == whole.ids
    assert held.text + rest.text == whole.text
    assert rest.reason == whole.reason
    assert rest.finished is not None and whole.finished is not None
    assert rest.finished.stop == whole.finished.stop
    assert rest.finished.completion_tokens == whole.finished.completion_tokens == len(whole.ids)
    assert rest.finished.prompt_tokens == whole.finished.prompt_tokens
    both = [*held.logprobs, *rest.logprobs]
    assert [list(mine.top_token_ids) for mine in both] == [list(theirs.top_token_ids) for theirs in whole.logprobs]
    assert [mine.logprob for mine in both] == pytest.approx([theirs.logprob for theirs in whole.logprobs], abs=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_stream_cut_after_any_message_goes_on(loop: asyncio.Runner, running: Trio, name: str) -> None:
    fields = CASES[name]

    async def test() -> None:
        whole = await running.generate(PROMPT, DRAFT_LENGTH, **fields)
        for messages in range(len(whole.chunks)):
            held = await cut(running, messages, fields)
            check(whole, held, await resume(running, held, fields))
        await running.wait_until_idle()

    loop.run(test())


async def spelt_out(running: Trio, fields: dict[str, Any]) -> Answer:
    """The whole answer in the smallest messages there are: plain decoding gives a token at a time."""
    plain = await running.generate(PROMPT, 0, **fields)
    drafted = await running.generate(PROMPT, DRAFT_LENGTH, **fields)
    assert plain.result == drafted.result
    return plain


def stop_in(text: str, end: int) -> str:
    """A string of up to four characters that occurs first where it ends at `end`."""
    return next(text[begin:end] for begin in range(end - 4, -1, -1) if text.find(text[begin:end]) == begin)


@pytest.mark.parametrize("include_stop", [False, True])
def test_stop_string_across_the_cut_is_found(loop: asyncio.Runner, running: Trio, include_stop: bool) -> None:
    fields = CASES["characters"]

    async def test() -> int:
        text = (await running.generate(PROMPT, 0, **fields)).text
        assert text.isprintable() and len(text) >= 20
        stopping = fields | {"stop": [stop_in(text, 17)], "include_stop": include_stop}
        whole = await running.generate(PROMPT, DRAFT_LENGTH, **stopping)
        assert whole.reason == "stop" and whole.finished is not None and whole.finished.stop
        for messages in range(len(whole.chunks)):
            held = await cut(running, messages, stopping)
            check(whole, held, await resume(running, held, stopping))
        return len(whole.chunks)

    assert loop.run(test()) > 3


def test_stop_string_whose_beginning_the_client_holds_already_is_found(loop: asyncio.Runner, running: Trio) -> None:
    """Ids that no stream of ours would have released by themselves: a client may have got them one by one elsewhere."""
    fields = CASES["characters"]

    async def test() -> None:
        free = await running.generate(PROMPT, 0, **fields)
        stop = stop_in(free.text, 17)
        whole = await running.generate(PROMPT, 0, **fields, stop=[stop], include_stop=True)
        for count in range(len(whole.ids)):
            again = request(PROMPT, DRAFT_LENGTH, **fields, stop=[stop], include_stop=True)
            again.resume_token_ids.extend(whole.ids[:count])
            rest = await read(running.stub.Generate(again))
            assert whole.ids[:count] + rest.ids == whole.ids
            assert rest.reason == "stop" and rest.finished is not None and rest.finished.stop == stop
            assert whole.text.endswith(rest.text)

    loop.run(test())


def test_character_of_several_tokens_is_never_torn(loop: asyncio.Runner, running: Trio) -> None:
    """The byte-level vocabulary spells a snowman in three tokens; a bias makes the model write nothing but those."""
    tokenizer = running.gateways[0].parts.tokenizer
    snowman = tokenizer.encode_text("\u2603", False)
    assert len(snowman) == 3
    fields = {"temperature": 1.0, "max_tokens": 14, "ignore_eos": True, "frequency_penalty": 1.0}
    fields["logit_bias"] = dict.fromkeys(snowman, 80.0)

    async def test() -> None:
        for seed in range(10, 30):
            whole = await spelt_out(running, fields | {"seed": seed})
            if len(set(whole.text) - {"\ufffd"}) and len(whole.chunks) > 6:  # characters whole, and bytes that are none
                break
        assert "\ufffd" in whole.text and set(whole.text) != {"\ufffd"}
        for held in at_every_message(whole):
            check(whole, held, await resume(running, held, fields))

    loop.run(test())


def test_answer_cut_short_in_mid_character_goes_on_behind_it(loop: asyncio.Runner, running: Trio) -> None:
    """max_tokens fell inside a character, whose bytes were shown as U+FFFD; a larger one goes on, nothing twice."""
    snowman = running.gateways[0].parts.tokenizer.encode_text("\u2603", False)
    fields = {"temperature": 1.0, "ignore_eos": True, "frequency_penalty": 1.0, "seed": 10}
    fields["logit_bias"] = dict.fromkeys(snowman, 80.0)

    async def test() -> int:
        torn = 0
        whole = await running.generate(PROMPT, 0, max_tokens=14, **fields)
        for limit in range(1, 14):
            held = await running.generate(PROMPT, DRAFT_LENGTH, max_tokens=limit, **fields)
            rest = await resume(running, held, fields | {"max_tokens": 14})
            assert held.ids + rest.ids == whole.ids
            both = held.text + rest.text
            assert len(both) == len(whole.text)
            assert all(mine in (theirs, "\ufffd") for mine, theirs in zip(both, whole.text, strict=True))
            torn += both != whole.text
        return torn

    assert loop.run(test()) > 0


def at_every_message(whole: Answer) -> Iterator[Answer]:
    """Clients that received any number of messages, up to all of them."""
    for number in range(len(whole.chunks) + 1):
        yield Answer(whole.started, chunks=list(whole.chunks[:number]))


@pytest.mark.parametrize("name", ["greedy", "end token", "characters"])
def test_resuming_a_finished_answer_ends_at_once(loop: asyncio.Runner, running: Trio, name: str) -> None:
    fields = CASES[name]

    async def test() -> None:
        stop = {}
        whole = await running.generate(PROMPT, DRAFT_LENGTH, **fields)
        if name == "characters":
            stop = {"stop": [stop_in(whole.text, 13)]}
            whole = await running.generate(PROMPT, DRAFT_LENGTH, **fields, **stop)
        assert whole.reason == ("length" if name == "greedy" else "stop")
        before = await running.target.stats()
        rest = await resume(running, whole, fields | stop)
        assert rest.ids == [] and rest.text == ""
        check(whole, whole, rest)
        after = await running.target.stats()
        assert after.steps == before.steps, "nothing is left to compute"

    loop.run(test())


def test_resumed_tokens_count_towards_max_tokens(loop: asyncio.Runner, running: Trio) -> None:
    fields = {"temperature": 1.0, "seed": 12, "ignore_eos": True}

    async def test() -> None:
        long = await running.generate(PROMPT, 0, max_tokens=20, **fields)
        for limit in (11, 12, 19):
            again = request(PROMPT, DRAFT_LENGTH, max_tokens=limit, **fields)
            again.resume_token_ids.extend(long.ids[:10])
            rest = await read(running.stub.Generate(again))
            assert rest.ids == long.ids[10:limit]
            assert rest.reason == "length"
            assert rest.finished is not None and rest.finished.completion_tokens == limit

    loop.run(test())


def test_resumed_tokens_count_towards_min_tokens(loop: asyncio.Runner, running: Trio) -> None:
    fields = CASES["end token"]

    async def test() -> None:
        whole = await running.generate(PROMPT, 0, **fields)
        assert len(whole.ids) > fields["min_tokens"]
        for count in range(len(whole.ids)):
            again = request(PROMPT, DRAFT_LENGTH, **fields)
            again.resume_token_ids.extend(whole.ids[:count])
            rest = await read(running.stub.Generate(again))
            assert rest.ids == whole.ids[count:]
            assert rest.reason == whole.reason == "stop"

    loop.run(test())


def test_any_gateway_goes_on_with_what_another_began(loop: asyncio.Runner, running: Trio) -> None:
    fields = CASES["sampled"]

    async def test() -> None:
        other = await running.start_gateway()
        try:
            whole = await running.generate(PROMPT, DRAFT_LENGTH, **fields)
            held = await cut(running, 3, fields)
            again = request(PROMPT, DRAFT_LENGTH, **(fields | {"seed": held.started.seed}))
            again.resume_token_ids.extend(held.ids)
            check(whole, held, await read(other.stub.Generate(again)))
        finally:
            await other.stop()
            running.gateways.remove(other)

    loop.run(test())
