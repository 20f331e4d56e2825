"""Every sampling parameter, and every pair of them, under speculation: the draft changes nothing but the speed.

Plain decoding with the same seed is the reference; that its tokens are drawn as the settings say is the business of
the tests of `forerun.runtime.sampling`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trio import JUNK, MODEL, NGRAM, TWIN, VOCABULARY_SIZE, Answer, Pair, Trio, make_pair, trio

SEED = 23
MAX_TOKENS = 20
TEMPERATURES = (0.8, 1.0)
TOLERANCE = 1e-3  # of log probabilities: batches of other shapes add up in another order
END_TOKEN_IDS = [2, *range(40, 240, 10)]  # so many that answers end by themselves, and min_tokens and ignore_eos count

SETTINGS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 6},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.08},
    "presence_penalty": {"presence_penalty": 1.8},
    "frequency_penalty": {"frequency_penalty": -1.9},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "logit_bias": {"logit_bias": {7: 12.0, 300: 12.0, 40: -100.0, 311: 11.0}},
    "min_tokens": {"min_tokens": 12},
    "stop_token_ids": {"stop_token_ids": [7, *range(10, 38), 300]},
    "ignore_eos": {"ignore_eos": True},
    "logprobs": {"logprobs": 5},
}
ALONE: list[tuple[str, ...]] = [(), *((name,) for name in SETTINGS)]
PAIRS: list[tuple[str, ...]] = list(itertools.combinations(SETTINGS, 2))
CASES = [*ALONE, *PAIRS, tuple(SETTINGS)]


def prompt_of(case: tuple[str, ...]) -> list[int]:
    """A prompt of its own for each case; half of it is said twice."""
    source = random.Random(f"{SEED} {case}")
    half = [source.randrange(3, VOCABULARY_SIZE) for _ in range(source.randint(4, 20))]
    return half + half


def fields_of(case: tuple[str, ...], temperature: float) -> dict[str, Any]:
    fields: dict[str, Any] = {"temperature": temperature, "max_tokens": MAX_TOKENS, "seed": SEED + CASES.index(case)}
    for name in case:
        fields |= SETTINGS[name]
    return fields


async def answers(running: Trio, draft_length: int, temperature: float, **more: Any) -> list[Answer]:
    """Every case once, all at once."""
    return list(
        await asyncio.gather(
            *(running.generate(prompt_of(case), draft_length, **fields_of(case, temperature), **more) for case in CASES)
        )
    )


@pytest.fixture(scope="session")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A pair whose answers are short and not always certain."""
    print(f"settings with seed {SEED}")
    return make_pair(tmp_path_factory.mktemp("talkative"), eos_token_id=END_TOKEN_IDS)


@pytest.fixture(scope="session")
def plain(talkative: Pair) -> dict[float, list[Answer]]:
    """What each case says without a draft."""

    async def speak() -> dict[float, list[Answer]]:
        async with trio(talkative, NGRAM) as running:
            return {temperature: await answers(running, 0, temperature) for temperature in TEMPERATURES}

    return asyncio.run(speak())


@pytest.fixture(scope="module", params=[MODEL, NGRAM, JUNK, TWIN])
def running(request: pytest.FixtureRequest, loop: asyncio.Runner, talkative: Pair) -> Iterator[tuple[str, Trio]]:
    stack = AsyncExitStack()
    services = loop.run(stack.enter_async_context(trio(talkative, request.param, draft_settings={"max_sessions": 256})))
    yield request.param, services
    loop.run(stack.aclose())


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_no_setting_is_ignored(talkative: Pair, temperature: float) -> None:
    """Each setting alone changes what is said to some prompt; `logprobs` adds to it without changing it."""
    prompts = [prompt_of((str(number),)) for number in range(8)]
    common = {"temperature": temperature, "max_tokens": MAX_TOKENS, "seed": SEED}

    async def say(running: Trio, fields: dict[str, Any]) -> list[list[int]]:
        spoken = await asyncio.gather(*(running.generate(prompt, 0, **common, **fields) for prompt in prompts))
        return [answer.ids for answer in spoken]

    async def test() -> list[list[list[int]]]:
        async with trio(talkative, NGRAM) as running:
            return list(await asyncio.gather(*(say(running, fields) for fields in [{}, *SETTINGS.values()])))

    without, *with_setting = asyncio.run(test())
    changed = {name: spoken != without for name, spoken in zip(SETTINGS, with_setting, strict=True)}
    assert changed == {name: name != "logprobs" for name in SETTINGS}


@pytest.mark.parametrize("draft_length", [1, 5])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_every_pair_of_settings_says_the_same_with_a_draft(
    loop: asyncio.Runner,
    plain: dict[float, list[Answer]],
    running: tuple[str, Trio],
    temperature: float,
    draft_length: int,
) -> None:
    kind, services = running
    spoken = loop.run(answers(services, draft_length, temperature))
    for case, expected, got in zip(CASES, plain[temperature], spoken, strict=True):
        assert got.result == expected.result, case
        check_logprobs(case, expected, got)
    drafted = sum(answer.usage.drafted_tokens for answer in spoken)
    accepted = sum(answer.usage.accepted_tokens for answer in spoken)
    print(f"{kind}: {drafted} drafted, {accepted} accepted")
    assert drafted > 0
    assert accepted >= {TWIN: 0.98, MODEL: 0.2}.get(kind, 0.0) * drafted
    loop.run(services.wait_until_idle())


def check_logprobs(case: tuple[str, ...], expected: Answer, got: Answer) -> None:
    assert len(got.logprobs) == (len(got.ids) if "logprobs" in case else 0), case
    for mine, theirs in zip(got.logprobs, expected.logprobs, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=TOLERANCE), case
        assert list(mine.top_token_ids) == list(theirs.top_token_ids), case
        assert list(mine.top_logprobs) == pytest.approx(list(theirs.top_logprobs), abs=TOLERANCE), case


@pytest.mark.parametrize("window", [6, 32])
def test_running_ahead_says_the_same(
    loop: asyncio.Runner, plain: dict[float, list[Answer]], running: tuple[str, Trio], window: int
) -> None:
    _, services = running

    spoken = loop.run(answers(services, None, 1.0, speculation={"draft_length": 3, "window": window}))
    assert [answer.result for answer in spoken] == [answer.result for answer in plain[1.0]]
    assert max(len(answer.usage.drafted_per_position) for answer in spoken) == 3


@pytest.mark.parametrize("temperature", [0.0, *TEMPERATURES])
def test_logprobs_are_the_models_own_distribution(
    loop: asyncio.Runner, talkative: Pair, running: tuple[str, Trio], temperature: float
) -> None:
    """Whatever bends the draw (here nearly everything), they are transformers' log softmax of the raw logits."""
    _, services = running
    count = 4
    fields = fields_of(tuple(SETTINGS), temperature) | {"logprobs": count, "top_k": 0, "min_p": 0.0, "top_p": 1.0}
    answer = loop.run(services.generate(prompt_of(()), 4, **fields))
    assert len(answer.ids) >= 12
    expected = log_softmax(talkative, prompt_of(()), answer.ids)
    for token_id, logprobs, row in zip(answer.ids, answer.logprobs, expected, strict=True):
        assert logprobs.logprob == pytest.approx(float(row[token_id]), abs=TOLERANCE)
        best = row.topk(count)
        assert list(logprobs.top_token_ids) == best.indices.tolist()
        assert list(logprobs.top_logprobs) == pytest.approx(best.values.tolist(), abs=TOLERANCE)
    texts = [text for chunk in answer.chunks for text in chunk.token_texts]
    assert len(texts) == len(answer.ids)


def log_softmax(pair: Pair, prompt: list[int], output: list[int]) -> torch.Tensor:
    """One row for each output token, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([prompt + output])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


def test_logprobs_of_zero_give_the_drawn_token_only(loop: asyncio.Runner, running: tuple[str, Trio]) -> None:
    answer = loop.run(running[1].generate([5, 6, 7], 3, temperature=1.0, max_tokens=6, seed=1, logprobs=0))
    assert len(answer.logprobs) == len(answer.ids)
    assert all(not logprobs.top_token_ids and logprobs.logprob < 0 for logprobs in answer.logprobs)


def test_a_seed_is_drawn_when_none_is_given_and_reproduces_the_answer(
    loop: asyncio.Runner, running: tuple[str, Trio]
) -> None:
    _, services = running
    fields = {"temperature": 1.0, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    first, second = (loop.run(services.generate([9, 8, 7], 4, **fields)) for _ in range(2))
    assert first.started.seed != second.started.seed
    assert first.ids != second.ids
    again = loop.run(services.generate([9, 8, 7], 4, seed=first.started.seed, **fields))
    assert again.started.seed == first.started.seed
    assert again.result == first.result


@pytest.mark.parametrize("seed", [0, (1 << 64) - 1])
def test_any_seed_is_used_as_given(loop: asyncio.Runner, running: tuple[str, Trio], seed: int) -> None:
    _, services = running
    fields = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True, "seed": seed}
    plain, spoken = (loop.run(services.generate([9, 8, 7], length, **fields)) for length in (0, 4))
    assert plain.started.seed == spoken.started.seed == seed
    assert plain.result == spoken.result
