"""The kernel draws what `sampling.draw` draws."""

from __future__ import annotations

import math
import random

import pytest
import torch

from forerun.errors import Internal
from forerun.runtime.model_runner import drawn_by_row
from forerun.runtime.noise import gumbel_noise
from forerun.runtime.sampling import Draw, DrawRequest, draw
from forerun.sampling_params import SamplingParams
from tests.gpu.device import DEVICE, needs_kernels

pytestmark = needs_kernels


def drawn_by_kernel(logits: torch.Tensor, requests: list[DrawRequest]) -> torch.Tensor:
    from forerun.runtime.draw_kernel import draw_rows

    rows = [(request, request.first_position + i) for request in requests for i in range(request.row_count)]
    seeds = torch.tensor([r.params.seed - (1 << 64 if r.params.seed >> 63 else 0) for r, _ in rows], device=DEVICE)
    positions = torch.tensor([position for _, position in rows], device=DEVICE)
    temperatures = torch.tensor([r.params.temperature for r, _ in rows], dtype=torch.float64, device=DEVICE)
    return draw_rows(logits, seeds, positions, temperatures)


def requests_for(generator: random.Random, count: int) -> list[DrawRequest]:
    found = []
    for _ in range(count):
        temperature = generator.choice([0.0, 0.3, 0.8, 1.0, 1.7])
        params = SamplingParams(temperature, seed=generator.choice([0, 7, generator.getrandbits(64)]))
        position = generator.randrange(1, 5000)
        found.append(DrawRequest(params, [1] * (position + 3), 1, position, generator.randint(1, 4)))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocabulary_size", [320, 5003, 49152])
def test_draws_what_the_other_way_draws(vocabulary_size: int, dtype: torch.dtype) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    requests = requests_for(random.Random(seed), 24)
    rows = sum(request.row_count for request in requests)
    generator = torch.Generator(DEVICE).manual_seed(seed)
    logits = (3 * torch.randn(rows, vocabulary_size, generator=generator, device=DEVICE)).to(dtype)
    found = drawn_by_kernel(logits, requests)
    expected = [draw.token_id for draws in draw(logits, requests) for draw in draws]
    assert found[:, 0].long().tolist() == expected
    likely = logits.float().log_softmax(-1).gather(1, found[:, :1].long())[:, 0].exp()
    torch.testing.assert_close(found[:, 1], likely, rtol=1e-4, atol=1e-6)


def test_the_noise_is_that_of_the_other_way() -> None:
    """With even logits a draw is the largest noise."""
    rows, vocabulary_size = 300, 49152
    noise = gumbel_noise([11] * rows, range(rows), vocabulary_size, DEVICE)
    requests = [DrawRequest(SamplingParams(1.0, seed=11), [1] * rows, 1, 0, rows)]
    found = drawn_by_kernel(torch.zeros(rows, vocabulary_size, device=DEVICE), requests)
    assert found[:, 0].long().tolist() == noise.argmax(-1).tolist()
    torch.testing.assert_close(found[:, 1], torch.full((rows,), 1 / vocabulary_size, device=DEVICE))


def test_equal_logits_go_to_the_lowest_token() -> None:
    logits = torch.zeros(2, 9000, device=DEVICE)
    logits[0, [8123, 4000, 4001]] = 2.0
    requests = [DrawRequest(SamplingParams(0.0), [1] * 9, 1, 5, 2)]
    assert drawn_by_kernel(logits, requests)[:, 0].tolist() == [4000, 0]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_number_is_not_drawn_from(wrong: float, temperature: float) -> None:
    logits = torch.zeros(2, 9000, device=DEVICE)
    logits[1, 5000] = wrong
    requests = [DrawRequest(SamplingParams(temperature), [1] * 9, 1, 5, 2)]
    drawn = drawn_by_kernel(logits, requests)
    assert drawn[0, 0] >= 0 and drawn[1, 0] == -1
    with pytest.raises(Internal, match="position 6"):
        draw(logits, requests, drawn)


def test_forbidden_tokens_are_not_drawn() -> None:
    logits = torch.full((1, 5000), -math.inf, device=DEVICE)
    logits[0, 4321] = -3.0
    assert drawn_by_kernel(logits, [DrawRequest(SamplingParams(1.0), [1] * 9, 1, 5, 1)])[0].tolist() == [4321, 1.0]


def test_rows_that_are_not_simple_are_drawn_beside_those_that_are() -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    logits = 3 * torch.randn(5, 5000, generator=generator, device=DEVICE)
    params = (
        SamplingParams(0.0),
        SamplingParams(0.8, top_p=0.9),
        SamplingParams(0.9, seed=3),
        SamplingParams(0.0, repetition_penalty=1.5),
        SamplingParams(1.0, logprobs=2),
    )
    requests = [DrawRequest(p, [1, 2, 3, 4], 2, 4, 1) for p in params]
    with_kernel: list[list[Draw]] = draw(logits, requests, drawn_by_kernel(logits, requests))
    assert with_kernel == draw(logits, requests)


def test_a_next_step_finds_what_was_drawn_without_the_host() -> None:
    from forerun.runtime.draw_kernel import draw_rows, take_drawn

    logits = torch.zeros(3, 5000, device=DEVICE)
    logits[0, 77] = logits[1, 4999] = 1.0
    logits[2, 5] = math.nan
    nothing = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    kept = torch.full((8,), 9, device=DEVICE)
    draw_rows(logits, nothing, nothing, nothing.double(), kept)
    assert kept.tolist() == [77, 4999, 0, 9, 9, 9, 9, 9], "what is no number must still be a token"
    fed = torch.tensor([drawn_by_row(1), 3, drawn_by_row(0), 0, drawn_by_row(7)], device=DEVICE)
    assert take_drawn(fed, kept).tolist() == [4999, 3, 77, 0, 9]
