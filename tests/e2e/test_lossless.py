"""Losslessness: speculative output is plain output is transformers' greedy output, token for token.

Real services over real gRPC with tiny random models in float32, where equality is exact.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trio import JUNK, MODEL, NGRAM, RIGHT, TWIN, VOCABULARY_SIZE, Answer, Pair, Trio, make_pair, trio

SEED = 11
PROMPTS = {"llama": 40, "gemma3_text": 12}  # full attention in every layer; a sliding window in every other
MAX_TOKENS = 24
DRAFT_LENGTHS = range(1, 9)
FIRST_ORDINARY_ID = 3  # below are the special tokens
END_TOKEN_IDS = [2, *range(40, 240, 25)]  # so many that some answers end by themselves


def make_prompts(count: int) -> list[list[int]]:
    """Random prompts of 1 to 60 tokens; every other one repeats itself, which gives the n-gram drafter its matches."""
    print(f"prompts with seed {SEED}")
    source = random.Random(SEED)
    prompts = []
    for number in range(count):
        ids = [source.randrange(FIRST_ORDINARY_ID, VOCABULARY_SIZE) for _ in range(source.randint(1, 60))]
        prompts.append((ids[:12] * 4) if number % 2 else ids)
    return prompts


def greedy(pair: Pair, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers writes, the end token included."""
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32)
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0
        )
        outputs.append(output[0, len(prompt) :].tolist())
    return outputs


async def answers(running: Trio, prompts: list[list[int]], draft_length: int, **fields: Any) -> list[Answer]:
    """All prompts at once."""
    calls = [running.generate(prompt, draft_length, max_tokens=MAX_TOKENS, **fields) for prompt in prompts]
    return list(await asyncio.gather(*calls))


@pytest.fixture(scope="session", params=PROMPTS)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def tiny_pair(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"), architecture=architecture, eos_token_id=END_TOKEN_IDS)


@pytest.fixture(scope="session")
def prompts(architecture: str) -> list[list[int]]:
    return make_prompts(PROMPTS[architecture])


@pytest.fixture(scope="session")
def expected(tiny_pair: Pair, prompts: list[list[int]]) -> list[list[int]]:
    return greedy(tiny_pair, prompts)


@pytest.fixture(scope="module", params=[MODEL, NGRAM, JUNK, TWIN, RIGHT])
def running(
    request: pytest.FixtureRequest,
    loop: asyncio.Runner,
    tiny_pair: Pair,
    prompts: list[list[int]],
    expected: list[list[int]],
) -> Iterator[tuple[str, Trio]]:
    """A trio with each kind of draft; the one that is always right has been told the answers."""
    stack = AsyncExitStack()
    services = loop.run(stack.enter_async_context(trio(tiny_pair, request.param)))
    for prompt, answer in zip(prompts, expected, strict=True):
        services.teach(prompt, answer)
    yield request.param, services
    loop.run(stack.aclose())


def test_plain_decoding_is_transformers_greedy(
    loop: asyncio.Runner, tiny_pair: Pair, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    async def test() -> list[Answer]:
        async with trio(tiny_pair, NGRAM) as services:
            return await answers(services, prompts, 0)

    plain = loop.run(test())
    assert [answer.ids for answer in plain] == expected
    assert all(answer.usage.drafted_tokens == 0 for answer in plain)
    assert all(answer.usage.rounds == len(answer.ids) for answer in plain)
    lengths = {len(ids) for ids in expected}
    assert MAX_TOKENS in lengths and len(lengths) > 1, "answers should end in both ways, or the test sees less"


@pytest.mark.parametrize("draft_length", DRAFT_LENGTHS)
def test_speculative_output_is_plain_output(
    loop: asyncio.Runner,
    running: tuple[str, Trio],
    prompts: list[list[int]],
    expected: list[list[int]],
    draft_length: int,
) -> None:
    kind, services = running
    spoken = loop.run(answers(services, prompts, draft_length))
    assert [answer.ids for answer in spoken] == expected
    check_speculation(kind, draft_length, spoken)
    loop.run(services.wait_until_idle())


def check_speculation(kind: str, draft_length: int, spoken: list[Answer]) -> None:
    """That there was some: otherwise equality says nothing."""
    drafted = sum(answer.usage.drafted_tokens for answer in spoken)
    accepted = sum(answer.usage.accepted_tokens for answer in spoken)
    committed = sum(len(answer.ids) for answer in spoken)
    print(f"{kind}: {drafted} drafted, {accepted} accepted, {committed} committed")
    assert drafted > (0 if kind == NGRAM else committed / 4)
    if kind in (TWIN, RIGHT):
        assert accepted == drafted
        rounds = max(answer.usage.rounds for answer in spoken)
        assert rounds <= 2 + MAX_TOKENS / (draft_length + 1), "the target should wait for a whole draft"
    elif kind == JUNK:
        assert accepted < drafted / 10
    elif kind == MODEL:
        assert drafted / 4 < accepted < drafted
    assert max(len(answer.usage.drafted_per_position) for answer in spoken) <= draft_length
