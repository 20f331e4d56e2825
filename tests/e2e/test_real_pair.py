"""Losslessness on the real default pair: speculative output is plain output is transformers' greedy output."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from draft_service.assembly import SHIPPED
from forerun.config import CacheConfig, DraftConfig, TargetConfig, resolve
from gateway.chat_template import ChatMessage
from tests.trio import MODEL, NGRAM, Answer, Pair, Trio, trio

pytestmark = pytest.mark.real_model

MAX_TOKENS = 24
DRAFT_LENGTH = 4
QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Write a Python function that adds two numbers.",
    "Translate to German: The house is small.",
    "Why is the sky blue? Answer in one sentence.",
    "List the first ten prime numbers.",
    "Repeat after me: the quick brown fox, the quick brown fox, the quick brown fox.",
    "Give me three names for a cat.",
]


@pytest.fixture(scope="module")
def target_folder(models_required: bool) -> Path:
    """The pulled target. Skips without it, unless models are required."""
    folder = resolve(CacheConfig, {}).folder / TargetConfig().model
    if not (folder / "config.json").is_file():
        reason = f"the default model is not in {folder}; `forerun pull {TargetConfig().model}` fetches it"
        (pytest.fail if models_required else pytest.skip)(reason)
    return folder


@pytest.fixture(scope="module", params=[MODEL, NGRAM])
def running(
    request: pytest.FixtureRequest, loop: asyncio.Runner, target_folder: Path, models_required: bool
) -> Iterator[Trio]:
    """The pair that `forerun up` starts, and the same target with prompt lookup."""
    draft_folder = SHIPPED / DraftConfig().model.removeprefix("ngram+")
    if request.param == MODEL and not (draft_folder / "config.json").is_file():
        (pytest.fail if models_required else pytest.skip)(f"no draft ships in {draft_folder}")
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(trio(Pair(target_folder, draft_folder), request.param)))
    loop.run(stack.aclose())


@pytest.fixture(scope="module")
def transformers_model(target_folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
    return model


def greedy_by_transformers(model: PreTrainedModel, prompt: list[int], answer: list[int]) -> list[int]:
    """What transformers draws at each place of the answer: the answer itself if, and only if, that is its greedy one.

    One pass instead of one a token, by induction over the places.
    """
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0]
    drawn: list[int] = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    return drawn


def test_the_real_pair_is_lossless(loop: asyncio.Runner, running: Trio, transformers_model: PreTrainedModel) -> None:
    tokenizer = running.gateways[0].parts.tokenizer
    prompts = [tokenizer.encode_chat([ChatMessage("user", question)], False) for question in QUESTIONS]

    async def speak(draft_length: int) -> list[Answer]:
        calls = [running.generate(prompt, draft_length, max_tokens=MAX_TOKENS, timeout_s=300) for prompt in prompts]
        return list(await asyncio.gather(*calls))

    plain, drafted = loop.run(speak(0)), loop.run(speak(DRAFT_LENGTH))
    for prompt, answer in zip(prompts, plain, strict=True):
        assert answer.ids == greedy_by_transformers(transformers_model, prompt, answer.ids)
        assert answer.reason == "stop" or len(answer.ids) == MAX_TOKENS
    assert [answer.result for answer in drafted] == [answer.result for answer in plain]
    verified = sum(answer.usage.drafted_tokens for answer in drafted)
    accepted = sum(answer.usage.accepted_tokens for answer in drafted)
    print(f"{verified} candidates, {accepted} accepted")
    assert verified > 0
    assert accepted > verified / 10
    loop.run(running.wait_until_idle())
