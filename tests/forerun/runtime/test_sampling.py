"""The draw against a plain reference: exact for any settings, right in distribution, and blind to its company.

Seeds are fixed, so a pass stays a pass; the false-alarm rates say how likely an honest sampler was to fail once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

from forerun.errors import Internal
from forerun.runtime.noise import gumbel_noise
from forerun.runtime.sampling import FIRST_NUCLEUS_WIDTH, DrawRequest, draw
from forerun.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [1, 4, 4, 2]
OUTPUT = [0, 4, 3]


def request(params: SamplingParams, row_count: int = 1, end: tuple[int, ...] = ()) -> DrawRequest:
    """Draws `row_count` tokens after PROMPT and the first tokens of OUTPUT, the rest of which are candidates."""
    tokens = PROMPT + OUTPUT
    return DrawRequest(params, tokens, len(PROMPT), len(tokens) - row_count + 1, row_count, end)


def tokens_of(logits: Tensor, requests: Sequence[DrawRequest]) -> list[list[int]]:
    return [[drawn.token_id for drawn in draws] for draws in draw(logits, requests)]


def processed(logits: Sequence[float], request: DrawRequest, row: int) -> list[float]:
    """The reference: one row in Python floats, one step after another, every cut by definition."""
    params, position = request.params, request.first_position + row
    history, output = request.token_ids[:position], Counter(request.token_ids[request.prompt_length : position])
    scores = [score + params.logit_bias.get(v, 0.0) for v, score in enumerate(logits)]
    if position - request.prompt_length < params.min_tokens:
        for v in {*params.stop_token_ids, *request.end_token_ids}:
            scores[v] = -math.inf
    for v in set(history):
        scores[v] *= params.repetition_penalty if scores[v] <= 0 else 1 / params.repetition_penalty
    for v, count in output.items():
        scores[v] -= params.frequency_penalty * count + params.presence_penalty
    if params.greedy:
        return scores
    scores = [score / params.temperature for score in scores]
    kept = set(range(len(scores)))
    if params.min_p > 0:
        ratios = [math.exp(score - max(scores)) for score in scores]
        _clear_of(params.min_p, ratios)
        kept &= {v for v, ratio in enumerate(ratios) if ratio >= params.min_p}
    if 0 < params.top_k < len(scores):
        kept &= {v for v in kept if scores[v] >= sorted(scores)[-params.top_k]}
    if params.top_p < 1:
        weights = {v: math.exp(scores[v] - max(scores)) for v in kept}
        above = {v: sum(w for u, w in weights.items() if scores[u] > scores[v]) / sum(weights.values()) for v in kept}
        _clear_of(params.top_p, list(above.values()))
        kept = {v for v in kept if above[v] < params.top_p}
    return [score if v in kept else -math.inf for v, score in enumerate(scores)]


class TooClose(Exception):
    """float32 may rightly decide this case otherwise than float64."""


def _clear_of(cut: float, values: Sequence[float]) -> None:
    if any(abs(value - cut) <= 1e-5 for value in values):
        raise TooClose


def reference_token(logits: Sequence[float], request: DrawRequest, row: int) -> int:
    scores = processed(logits, request, row)
    if not request.params.greedy:
        noise = gumbel_noise([request.params.seed], [request.first_position + row], len(scores))[0].tolist()
        scores = [score + g for score, g in zip(scores, noise, strict=True)]
        best, second = sorted(scores)[:-3:-1]
        _clear_of(best - second, [0.0])
    return max(range(len(scores)), key=lambda v: (scores[v], -v))


# Every number below is a small binary fraction, so that float32 and float64 agree on ties, of which there are many.
quarters = st.integers(-16, 16).map(lambda n: n / 4)
params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]),
    top_k=st.integers(0, 9),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 0.9)),
    seed=st.integers(0, 2**64 - 1),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 2.0, 0.5]),
    logit_bias=st.dictionaries(st.integers(0, 7), quarters, max_size=3),
    min_tokens=st.integers(0, 5),
    max_tokens=st.just(16),
    stop_token_ids=st.lists(st.integers(0, 7), max_size=2).map(tuple),
    ignore_eos=st.booleans(),
)


@st.composite
def batches(choose: st.DrawFn) -> tuple[list[DrawRequest], list[list[float]]]:
    requests = []
    for params in choose(st.lists(params_strategy, min_size=1, max_size=3)):
        tokens = choose(st.lists(st.integers(0, 7), min_size=1, max_size=9))
        prompt_length, row_count = choose(st.integers(1, len(tokens))), choose(st.integers(1, 4))
        first = max(prompt_length, len(tokens) + 1 - row_count)
        requests.append(DrawRequest(params, tokens, prompt_length, first, len(tokens) + 1 - first, (7,)))
    rows = sum(r.row_count for r in requests)
    return requests, choose(st.lists(st.lists(quarters, min_size=8, max_size=8), min_size=rows, max_size=rows))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(batches())
def test_every_draw_equals_the_reference(batch: tuple[list[DrawRequest], list[list[float]]]) -> None:
    requests, rows = batch
    expected, left = [], iter(rows)
    try:
        for each in requests:
            expected.append([reference_token(next(left), each, row) for row in range(each.row_count)])
    except TooClose:
        reject()
    assert tokens_of(torch.tensor(rows), requests) == expected


@pytest.mark.parametrize(
    "settings_of_case",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7, "top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 0.9, "top_k": 8, "top_p": 0.9, "min_p": 0.02},
        {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.4},
        {"temperature": 1.2, "top_p": 0.95, "repetition_penalty": 0.8, "logit_bias": {5: 1.5, 2: -100.0}},
        {"min_tokens": 8, "stop_token_ids": (0,), "top_k": 4},
    ],
)
def test_draws_over_seeds_follow_the_processed_distribution(settings_of_case: dict[str, object]) -> None:
    """Chi-square over 4,000 seeds and 12 tokens; false alarm 1e-6 a case. No token that was cut is ever drawn."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 1.5
    one = request(SamplingParams(**settings_of_case))  # type: ignore[arg-type]
    n = 4000
    seeds = [replace(one, params=replace(one.params, seed=1000 + i)) for i in range(n)]
    found = Counter(token for (token,) in tokens_of(logits.expand(n, 12), seeds))
    probs = torch.tensor(processed(logits.tolist(), one, 0), dtype=torch.float64).softmax(-1).tolist()
    assert all(probs[token] > 0 for token in found)
    assert chi_square_tail(found, probs, n) > 1e-6


def chi_square_tail(found: Counter[int], probs: Sequence[float], n: int) -> float:
    """The chance of a chi-square statistic this large; tokens expected fewer than 8 times are pooled."""
    cells = [(found[v], n * p) for v, p in enumerate(probs) if n * p >= 8]
    rest = (n - sum(count for count, _ in cells), n - sum(expected for _, expected in cells))
    if rest[1] > 1:
        cells.append(rest)
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    halves = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def test_draws_over_positions_follow_the_distribution() -> None:
    """One seed, 6,000 positions, chi-square; false alarm 1e-6."""
    logits, n = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0]), 6000
    (tokens,) = tokens_of(logits.expand(n, 5), [DrawRequest(SamplingParams(seed=8), [0] * n, 1, 1, n)])
    assert chi_square_tail(Counter(tokens), logits.softmax(-1).tolist(), n) > 1e-6


MANY = [
    GREEDY,
    SamplingParams(seed=2, logprobs=3),
    SamplingParams(temperature=0.7, top_k=50, top_p=0.9, seed=2**64 - 1, repetition_penalty=1.2),
    SamplingParams(temperature=0.0, frequency_penalty=0.4, logprobs=0),
    SamplingParams(temperature=1.5, top_p=0.97, seed=5, logit_bias={8: 3.0}),
    SamplingParams(temperature=0.9, min_p=0.01, seed=5, min_tokens=6, stop_token_ids=(9,)),
    GREEDY,
]


NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary_size", [1031, 4096])
def test_a_draw_is_bitwise_the_same_alone_and_in_a_batch(vocabulary_size: int, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    requests = [request(params, 1 + i % 4, end=(3,)) for i, params in enumerate(MANY)]
    rows = sum(r.row_count for r in requests)
    logits = (torch.randn(rows, vocabulary_size, generator=generator) * 3).to(dtype).to(device)
    together = draw(logits, requests)
    start = 0
    for one, drawn in zip(requests, together, strict=True):
        assert draw(logits[start : start + one.row_count].clone(), [one]) == [drawn]
        start += one.row_count


@pytest.mark.gpu
@NEEDS_CUDA
def test_cpu_and_cuda_draw_the_same_tokens() -> None:
    """From the same logits: the noise differs in the last place at most, so that only a near-tie could fall apart."""
    logits = torch.randn(200, 4099, generator=torch.Generator().manual_seed(2)) * 3
    requests = [request(replace(params, seed=i)) for i, params in enumerate((MANY * 29)[:200])]
    assert tokens_of(logits, requests) == tokens_of(logits.cuda(), requests)


@pytest.mark.parametrize("params", MANY)
def test_a_later_row_equals_a_single_row_with_the_longer_history(params: SamplingParams) -> None:
    logits = torch.randn(4, 1031, generator=torch.Generator().manual_seed(6)) * 3
    whole = request(params, 4, end=(3,))
    (drawn,) = draw(logits, [whole])
    for i in range(4):
        position = whole.first_position + i
        single = replace(whole, token_ids=whole.token_ids[:position], first_position=position, row_count=1)
        assert draw(logits[i : i + 1], [single]) == [[drawn[i]]]


def test_candidates_count_as_history_for_the_rows_behind_them() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 1.0, 1.5]]).repeat(4, 1)
    penalised = request(replace(GREEDY, presence_penalty=1.0), 4)  # the rows see outputs [], [0], [0, 4], [0, 4, 3]
    assert tokens_of(logits, [penalised]) == [[4, 4, 3, 4]]


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_no_end_token_before_min_tokens(ignore_eos: bool) -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0, 0.0, 0.0]]).repeat(4, 1)
    params = replace(GREEDY, min_tokens=2, stop_token_ids=(1,), ignore_eos=ignore_eos)
    assert tokens_of(logits, [request(params, 4, end=(0,))]) == [[2, 2, 0, 0]]


def test_logit_bias_can_force_and_forbid() -> None:
    logits = torch.tensor([[5.0, 4.0, 0.0]])
    assert tokens_of(logits, [request(replace(GREEDY, logit_bias={2: 100.0}))]) == [[2]]
    assert tokens_of(logits, [request(replace(GREEDY, logit_bias={0: -100.0}))]) == [[1]]
    forced = [request(SamplingParams(seed=seed, logit_bias={2: 100.0})) for seed in range(200)]
    assert tokens_of(logits.expand(200, 3), forced) == [[2]] * 200


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1e-30), SamplingParams(top_k=1)])
def test_the_likeliest_token_is_drawn_when_nothing_else_can_be(params: SamplingParams) -> None:
    logits = torch.tensor([[-1e30, 2.0, 2.5, -math.inf, 2.4]])
    assert tokens_of(logits, [request(params)]) == [[2]]


@pytest.mark.parametrize("cut", [{"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 2, "top_p": 0.01}])
def test_every_cut_keeps_the_likeliest_token_and_its_ties(cut: dict[str, float]) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0, -2.0]])
    requests = [request(SamplingParams(seed=seed, **cut)) for seed in range(60)]  # type: ignore[arg-type]
    assert {token for (token,) in tokens_of(logits.expand(60, 5), requests)} == {1, 3}


def test_ties_go_to_the_lowest_token() -> None:
    logits = torch.tensor([[0.0, 7.0, 7.0, 7.0]], dtype=torch.bfloat16)
    assert tokens_of(logits, [request(GREEDY)]) == [[1]]
    ((drawn,),) = draw(logits, [request(replace(GREEDY, logprobs=4))])
    assert drawn.logprobs is not None
    assert [token_id for token_id, _ in drawn.logprobs.top] == [1, 2, 3, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_every_token_forbidden_draws_the_lowest(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, min_tokens=9, stop_token_ids=(0, 1, 2), top_p=0.5, top_k=1)
    assert tokens_of(torch.tensor([[0.0, 2.0, 1.0]]), [request(params)]) == [[0]]


def test_top_p_reaches_beyond_the_tokens_it_sorts_first() -> None:
    """A flat distribution: 1,500 of 3,000 tokens stay, and draws over 150 seeds land all over them and nowhere else."""
    logits = torch.linspace(0.0, -1e-3, 3000)[None]
    requests = [request(SamplingParams(seed=seed, top_p=0.5)) for seed in range(150)]
    tokens = [token for (token,) in tokens_of(logits.expand(150, 3000), requests)]
    mass = logits[0].double().softmax(-1).cumsum(-1)
    kept = int((mass < 0.5).sum()) + 1
    assert FIRST_NUCLEUS_WIDTH < kept - 100 < max(tokens) < kept


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(9)) * 4
    params = SamplingParams(temperature=0.5, logit_bias={3: 5.0}, repetition_penalty=1.5, seed=4, logprobs=7)
    expected = logits.log_softmax(-1)
    for row, drawn in enumerate(draw(logits, [request(params, 4)])[0]):
        assert drawn.logprobs is not None
        assert drawn.logprobs.logprob == pytest.approx(float(expected[row, drawn.token_id]), abs=2e-6)
        values, ids = expected[row].topk(7)
        assert [token_id for token_id, _ in drawn.logprobs.top] == ids.tolist()
        assert [logprob for _, logprob in drawn.logprobs.top] == pytest.approx(values.tolist(), abs=2e-6)


def test_each_request_gets_the_logprobs_it_asked_for() -> None:
    wanted: list[int | None] = [None, 0, 3, 20, None]
    draws = draw(torch.randn(5, 40), [request(replace(GREEDY, logprobs=count)) for count in wanted])
    found = [None if drawn.logprobs is None else len(drawn.logprobs.top) for (drawn,) in draws]
    assert found == wanted


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "params", [GREEDY, replace(GREEDY, presence_penalty=1.0), SamplingParams(top_k=2, top_p=0.5, min_p=0.1)]
)
def test_broken_logits_are_an_error_that_names_the_position(params: SamplingParams, bad: float) -> None:
    logits = torch.randn(4, 10)
    logits[2, 6] = bad
    with pytest.raises(Internal, match=f"position {request(params, 4).first_position + 2} hold NaN"):
        draw(logits, [request(params, 4)])


def test_the_callers_logits_are_left_alone() -> None:
    logits = torch.randn(7, 50)
    before = logits.clone()
    draw(logits, [request(MANY[2], 4), request(replace(MANY[3]), 3)])
    draw(logits, [request(MANY[4], 4), request(MANY[4], 3)])
    assert torch.equal(logits, before)


def test_nothing_to_draw() -> None:
    assert draw(torch.empty(0, 5), []) == []
    assert draw(torch.empty(0, 5), [request(GREEDY, 0)]) == [[]]
