"""The paged forward gives transformers' own logits, however a sequence was fed, cut and laid out."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from forerun.runtime.kv_cache import KvCache
from forerun.runtime.model import LoadedModel, load_model
from forerun.runtime.model_runner import (
    ForwardSlice,
    ModelRunner,
    block_count_for,
    default_block_count,
    kv_bytes_per_block,
)
from forerun.runtime.sequence import Sequence
from tests.models import ARCHITECTURES, make_tiny_model

BLOCKS, BLOCK_SIZE, VOCABULARY = 64, 4, 320


class Rig:
    """A runner, its cache, and the same model as transformers runs it."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self.model: LoadedModel = load_model(make_tiny_model(folder, architecture))
        self.plain: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager" if architecture == "gemma2" else "sdpa"
        )
        self.runner = ModelRunner(self.model, BLOCKS, BLOCK_SIZE)
        self.cache = KvCache(BLOCKS, BLOCK_SIZE)

    def slice(self, sequence: Sequence, count: int, logits_count: int) -> ForwardSlice:
        start = sequence.computed_length
        assert self.cache.reserve(sequence, start + count)
        new = tuple(sequence.token_ids[start : start + count])
        sequence.mark_computed(start + count)
        return ForwardSlice(new, start, tuple(sequence.block_table), logits_count)

    def expected(self, sequence: Sequence) -> torch.Tensor:
        """Logits of the computed tokens by one plain forward. [computed_length, V]."""
        with torch.no_grad():
            logits: torch.Tensor = self.plain(torch.tensor([sequence.token_ids[: sequence.computed_length]])).logits[0]
        return logits

    def fragment(self) -> None:
        """Take every other block away for good."""
        hogs = [Sequence() for _ in range(BLOCKS)]
        assert all(self.cache.reserve(hog, 1) for hog in hogs)
        for hog in hogs:
            if hog.block_table[0] % 2:
                self.cache.release(hog)


@pytest.fixture
def make_rig(tmp_path: Path) -> Callable[..., Rig]:
    return lambda architecture="llama": Rig(tmp_path / architecture, architecture)


def tokens(generator: random.Random, count: int) -> list[int]:
    return [generator.randrange(3, VOCABULARY) for _ in range(count)]


@pytest.mark.parametrize("fragmented", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_mix_of_prefill_decode_verify_and_rollback(
    make_rig: Callable[..., Rig], architecture: str, fragmented: bool
) -> None:
    rig = make_rig(architecture)
    generator = random.Random(f"{architecture} {fragmented}")
    if fragmented:
        rig.fragment()
    sequences = [Sequence() for _ in range(3)]
    for _ in range(14):
        batch = []
        for sequence in sequences:
            if generator.random() < 0.3 and sequence.computed_length > 1:  # a rejected draft
                sequence.truncate(generator.randrange(1, len(sequence)))
                rig.cache.truncate(sequence, len(sequence))
            if len(sequence) > 35:
                rig.cache.release(sequence)
                sequence.truncate(0)
            count = generator.choice([1, 1, 2, 5, 12])
            sequence.append(tokens(generator, count - sequence.pending_length))
            if generator.random() < 0.8:
                batch.append((sequence, rig.slice(sequence, count, generator.randint(0, count))))
        if not batch:
            continue
        logits = rig.runner.forward([part for _, part in batch])
        parts = [rig.expected(sequence)[sequence.computed_length - part.logits_count :] for sequence, part in batch]
        torch.testing.assert_close(logits, torch.cat(parts), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_long_prompt_in_chunks_then_greedy_decoding_equals_generate(
    make_rig: Callable[..., Rig], architecture: str
) -> None:
    rig = make_rig(architecture)
    prompt = tokens(random.Random(architecture), 90)
    sequence = Sequence(prompt)
    for count in (40, 37):  # both longer than what is treated as decoding, and longer than the sliding window
        assert rig.runner.forward([rig.slice(sequence, count, 0)]).shape == (0, VOCABULARY)
    for _ in range(30):
        logits = rig.runner.forward([rig.slice(sequence, sequence.pending_length, 1)])
        sequence.append([int(logits[0].argmax())])
    with torch.no_grad():
        ids = torch.tensor([prompt])
        answer = rig.plain.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, min_new_tokens=30, do_sample=False
        )[0].tolist()
    stop = answer.index(2, len(prompt)) if 2 in answer[len(prompt) :] else len(answer)
    assert sequence.token_ids[:stop] == answer[:stop]


def test_a_sequence_is_not_disturbed_by_its_neighbours(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    generator = random.Random(0)
    alone = Sequence(tokens(generator, 12))
    first = rig.runner.forward([rig.slice(alone, 12, 12)])
    others = [Sequence(tokens(generator, 9)) for _ in range(3)]
    rig.runner.forward([rig.slice(other, 9, 1) for other in others])
    rig.cache.truncate(alone, 12)
    alone.truncate(8)
    alone.append(tokens(random.Random(5), 4))
    alone.truncate(8)
    again = ForwardSlice(tuple(tokens(random.Random(0), 12)[8:]), 8, tuple(alone.block_table), 4)
    torch.testing.assert_close(rig.runner.forward([again]), first[8:], rtol=1e-4, atol=1e-4)


def test_logits_keep_the_dtype_of_the_model(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path), torch.bfloat16)
    runner = ModelRunner(model, 4)
    logits = runner.forward([ForwardSlice((5, 6, 7), 0, (2,), 2)])
    assert (logits.dtype, logits.shape) == (torch.bfloat16, (2, VOCABULARY))


def test_slices_that_cannot_be_right_are_our_own_bug(make_rig: Callable[..., Rig]) -> None:
    runner = make_rig().runner
    good = ForwardSlice((5, 6), 0, (0,), 1)
    runner.forward([good])
    for bad in (
        ForwardSlice((), 0, (0,), 0),
        ForwardSlice((5,), 0, (), 1),
        ForwardSlice((5,), 4, (0,), 1),
        ForwardSlice((5,), 0, (BLOCKS,), 1),
        ForwardSlice((5,), 0, (0,), 2),
    ):
        with pytest.raises(AssertionError):
            runner.forward([good, bad])
    with pytest.raises(AssertionError):
        runner.forward([])


def test_two_models_in_one_process_do_not_share_a_cache(tmp_path: Path) -> None:
    runners = [ModelRunner(load_model(make_tiny_model(tmp_path / str(seed), seed=seed)), 4) for seed in (0, 1)]
    part = ForwardSlice((5, 6, 7), 0, (0,), 3)
    first = runners[0].forward([part])
    assert not torch.allclose(first, runners[1].forward([part]), atol=0.1)
    assert torch.equal(first, runners[0].forward([part]))


def test_the_cache_is_sized_in_blocks(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path, layers=3, hidden=64, heads=4, kv_heads=2))
    per_token = 3 * 2 * (16 + 16) * 4  # layers, heads, widths of key and value, bytes of a float32
    assert model.kv_bytes_per_token == per_token
    assert kv_bytes_per_block(model, 16) == 16 * per_token
    assert block_count_for(model, 10 * 16 * per_token + 1, 16) == 10
    assert block_count_for(model, 1, 16) == 1
    assert default_block_count(model, 16) == 2048
