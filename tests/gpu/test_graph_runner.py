"""On a GPU, captured or not, compiled or not: transformers' own logits, and a draft's run of steps as single steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from forerun.runtime.compiled import compile_layers
from forerun.runtime.fused import fuse
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.model import load_model
from forerun.runtime.model_runner import ForwardSlice, drawn_by_row
from forerun.runtime.sampling import Draw, DrawRequest, draw, is_simple
from forerun.runtime.sequence import Sequence as TokenSequence
from forerun.runtime.step_shapes import VERIFYING
from forerun.sampling_params import SamplingParams
from tests.gpu.device import DEVICE, HAS_GPU, needs_gpu, needs_kernels
from tests.models import ARCHITECTURES, make_tiny_model

pytestmark = needs_kernels

BLOCKS, BLOCK_SIZE, VOCABULARY = 128, 4, 320
MODES = ("plain", "captured", "compiled") if HAS_GPU else ("plain",)
PARAMS = (SamplingParams(0.0), SamplingParams(0.8, seed=5), SamplingParams(1.0, seed=9))


class Rig:
    """A runner, its cache, and the same model as transformers runs it."""

    def __init__(self, folder: Path, architecture: str, mode: str, dtype: torch.dtype = torch.float32) -> None:
        from forerun.runtime.graph_runner import GraphRunner
        from forerun.runtime.step_shapes import Shapes

        if not (folder / "config.json").exists():
            make_tiny_model(folder, architecture)
        self.plain = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager" if architecture == "gemma2" else "sdpa"
        ).to(DEVICE)
        model = load_model(folder, dtype, DEVICE)
        self.shapes = Shapes(8, 64, deterministic=mode == "deterministic")
        self.runner = GraphRunner(model, BLOCKS, BLOCK_SIZE, self.shapes)
        self.cache = KvCache(BLOCKS, BLOCK_SIZE)
        fuse(model)
        if mode == "compiled":
            assert compile_layers(model) == model.layer_count
        if mode != "plain":
            self.runner.capture(chains=True)

    def slice(self, sequence: TokenSequence, count: int, logits_count: int, room: int = 0) -> ForwardSlice:
        start = sequence.computed_length
        assert self.cache.reserve(sequence, start + count + room)
        new = tuple(sequence.token_ids[start : start + count])
        sequence.mark_computed(start + count)
        return ForwardSlice(new, start, tuple(sequence.block_table), logits_count)

    def expected(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits [len(token_ids), V] by one plain forward."""
        with torch.no_grad():
            logits: torch.Tensor = self.plain(torch.tensor([token_ids], device=DEVICE)).logits[0]
        return logits


def tokens(generator: random.Random, count: int) -> list[int]:
    return [generator.randrange(3, VOCABULARY) for _ in range(count)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_mix_of_prefill_decode_verify_and_rollback(tmp_path: Path, architecture: str, mode: str) -> None:
    rig = Rig(tmp_path, architecture, mode)
    generator = random.Random(f"{architecture} {mode}")
    sequences = [TokenSequence() for _ in range(4)]
    for _ in range(20):
        batch = []
        for sequence in sequences:
            if generator.random() < 0.3 and sequence.computed_length > 1:  # a rejected draft
                sequence.truncate(generator.randrange(1, len(sequence)))
                rig.cache.truncate(sequence, len(sequence))
            if len(sequence) > 70:
                rig.cache.release(sequence)
                sequence.truncate(0)
            count = generator.choice([1, 1, 2, 5, 12, 40])
            sequence.append(tokens(generator, count - sequence.pending_length))
            if generator.random() < 0.8:
                batch.append((sequence, rig.slice(sequence, count, generator.randint(0, count))))
        if not batch:
            continue
        logits = rig.runner.forward([part for _, part in batch])
        parts = []
        for sequence, part in batch:
            whole = rig.expected(sequence.token_ids[: sequence.computed_length])
            parts.append(whole[sequence.computed_length - part.logits_count :])
        torch.testing.assert_close(logits, torch.cat(parts), rtol=2e-4, atol=2e-4)


@needs_gpu
@pytest.mark.parametrize("mode", ["plain", "compiled"])
def test_a_run_of_steps_is_what_single_steps_give(tmp_path: Path, mode: str) -> None:
    rig = Rig(tmp_path, "llama", "captured" if mode == "plain" else mode)
    generator = random.Random(mode)
    for sequences, most in ((1, 4), (3, 6), (8, 2), (2, 7)):
        made = [TokenSequence(tokens(generator, generator.randint(3, 30))) for _ in range(sequences)]
        for sequence in made:
            ahead = sequence.pending_length - generator.choice([1, 2])
            rig.runner.forward([rig.slice(sequence, ahead, 0)])
        wants = [generator.randint(1, most) for _ in made[1:]] + [most]
        slices = [
            rig.slice(sequence, sequence.pending_length, 1, count - 1)
            for sequence, count in zip(made, wants, strict=True)
        ]
        params = [generator.choice(PARAMS) for _ in made]
        requests = [
            DrawRequest(p, sequence.token_ids, 1, len(sequence), 1) for p, sequence in zip(params, made, strict=True)
        ]
        assert all(map(is_simple, requests))
        chained = rig.runner.chain(slices, requests, wants)
        assert chained is not None and [len(drawn) for drawn in chained] == wants
        for sequence, p, drawn in zip(made, params, chained, strict=True):
            for token_id, likely in drawn:
                logits = rig.expected(sequence.token_ids)[-1:]
                (found,) = draw(logits, [DrawRequest(p, sequence.token_ids, 1, len(sequence), 1)])[0]
                assert token_id == found.token_id
                assert likely == pytest.approx(logits[0].float().softmax(-1)[token_id].item(), rel=1e-3, abs=1e-5)
                sequence.append([token_id])
            rig.cache.release(sequence)


@needs_gpu
def test_a_run_of_steps_says_when_it_cannot(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "llama", "captured")
    sequence = TokenSequence(tokens(random.Random(0), 20))
    whole = rig.slice(sequence, 20, 1, 4)
    request = DrawRequest(SamplingParams(0.0), sequence.token_ids, 1, 20, 1)
    assert rig.runner.chain([whole], [request], [4]) is None, "a prompt is not a step of decoding"
    last = ForwardSlice(whole.token_ids[-1:], 19, whole.block_table, 1)
    narrowed = DrawRequest(SamplingParams(0.8, top_p=0.9), sequence.token_ids, 1, 20, 1)
    assert rig.runner.chain([last], [narrowed], [4]) is None, "nor can a graph narrow the vocabulary"
    assert rig.runner.chain([last], [request], [4]) is not None
    most = VERIFYING + 1
    longest = ForwardSlice(whole.token_ids[-most:], 20 - most, whole.block_table, 1)
    assert rig.runner.chain([longest] + [last] * 7, [request] * 8, [4] * 8) is None, "too much for one tile"


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_deterministic_steps_do_not_depend_on_their_company(tmp_path: Path, dtype: torch.dtype) -> None:
    rig = Rig(tmp_path, "llama", "deterministic", dtype)
    generator = random.Random(1)
    prompt = tokens(generator, 90)

    def logits_at(cuts: Sequence[int], company: int) -> torch.Tensor:
        """[VOCABULARY] after the prompt, fed in pieces, with others in the last step."""
        sequence = TokenSequence(prompt)
        for end in cuts:
            rig.runner.forward([rig.slice(sequence, end - sequence.computed_length, 0)])
        others = [TokenSequence(tokens(generator, generator.randint(1, 5))) for _ in range(company)]
        slices = [rig.slice(sequence, 90 - sequence.computed_length, 1)]
        slices += [rig.slice(other, other.pending_length, 1) for other in others]
        found = rig.runner.forward(slices)[0]
        for each in (sequence, *others):
            rig.cache.release(each)
        return found

    alone = logits_at([60, 89], 0)
    for cuts, company in (([89], 3), ([30, 60], 7), ([85], 1), ([16, 17, 89], 2)):
        assert torch.equal(logits_at(cuts, company), alone), (cuts, company)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_begun_behind_another_takes_what_that_one_draws(tmp_path: Path, mode: str) -> None:
    rig = Rig(tmp_path, "llama", mode)
    made = [TokenSequence(tokens(random.Random(i), 9 + 7 * i)) for i in range(3)]
    steps: list[list[list[Draw]]] = []
    ends: list[Callable[[], list[list[Draw]]]] = []
    for step in range(5):
        slices = []
        for row, sequence in enumerate(made):
            if step:
                sequence.append([0])  # not known yet
            part = rig.slice(sequence, sequence.pending_length, 1)
            slices.append(replace(part, token_ids=(drawn_by_row(row),)) if step else part)
        requests = [DrawRequest(p, s.token_ids, 1, len(s), 1) for p, s in zip(PARAMS, made, strict=True)]
        ends.append(rig.runner.begin(slices, requests))
        if len(ends) == 2:
            steps.append(ends.pop(0)())
    steps.append(ends.pop()())
    for number, (sequence, params) in enumerate(zip(made, PARAMS, strict=True)):
        sequence.truncate(9 + 7 * number)
        for drawn in steps:
            logits = rig.expected(sequence.token_ids)[-1:]
            expected = draw(logits, [DrawRequest(params, sequence.token_ids, 1, len(sequence), 1)])[0]
            assert drawn[number] == expected
            sequence.append([expected[0].token_id])
