"""Acceptance is the longest common prefix and one token more: by example, for any two lists, and in whole chains.

The chains use toy models that are tables of logits. Seeds are fixed, so a pass stays a pass; the false-alarm rates say
how likely honest code was to fail once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from forerun.runtime.sampling import DrawRequest, draw
from forerun.sampling_params import SamplingParams
from target_service.acceptance import Acceptance, accept


@pytest.mark.parametrize(
    ("candidates", "draws", "expected"),
    [
        ([], [7], Acceptance(0, (7,))),
        ([5], [5, 8], Acceptance(1, (5, 8))),
        ([5], [6, 8], Acceptance(0, (6,))),
        ([1, 2, 3], [1, 2, 3, 4], Acceptance(3, (1, 2, 3, 4))),
        ([1, 2, 3], [1, 9, 3, 4], Acceptance(1, (1, 9))),
        ([1, 1, 1], [2, 1, 1, 1], Acceptance(0, (2,))),
    ],
)
def test_examples(candidates: list[int], draws: list[int], expected: Acceptance) -> None:
    assert accept(candidates, draws) == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2))), st.integers(0, 2))
def test_commits_are_the_draws_up_to_the_first_that_differs(pairs: list[tuple[int, int]], last: int) -> None:
    candidates = [candidate for candidate, _ in pairs]
    draws = [drawn for _, drawn in pairs] + [last]
    outcome = accept(candidates, draws)
    kept = outcome.accepted_count
    assert outcome.token_ids == tuple(draws[: kept + 1])
    assert candidates[:kept] == draws[:kept]
    assert kept == len(candidates) or candidates[kept] != draws[kept]


@given(st.lists(st.integers(0, 3)), st.integers(0, 3))
def test_the_targets_own_draws_are_accepted_whole(draft: list[int], bonus: int) -> None:
    assert accept(draft, [*draft, bonus]) == Acceptance(len(draft), (*draft, bonus))


@pytest.mark.parametrize("draws", [[], [1], [1, 2, 3]])
def test_the_number_of_draws_is_checked(draws: list[int]) -> None:
    with pytest.raises(AssertionError, match="one draw more"):
        accept([1], draws)


V = 16
PROMPT = [3, 1, 3]
TARGET = torch.randn(V, V, generator=torch.Generator().manual_seed(20)) * 2  # row: the last token; column: its logits
DRAFTS = {
    "perfect": TARGET,
    "noisy": TARGET + torch.randn(V, V, generator=torch.Generator().manual_seed(21)),
    "junk": torch.randn(V, V, generator=torch.Generator().manual_seed(22)) * 2,
}
SETTINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(seed=31),
    "cut and penalised": SamplingParams(
        temperature=0.8,
        top_k=9,
        top_p=0.95,
        seed=2**64 - 9,
        repetition_penalty=1.3,
        min_tokens=12,
        stop_token_ids=(5, 6),
    ),
}


def next_tokens(table: Tensor, tokens: Sequence[int], row_count: int, params: SamplingParams) -> list[int]:
    """What the model draws after the last `row_count` prefixes of `tokens`."""
    first = len(tokens) - row_count + 1
    request = DrawRequest(params, tokens, len(PROMPT), first, row_count)
    (draws,) = draw(table[torch.tensor(tokens[first - 1 :])], [request])
    return [drawn.token_id for drawn in draws]


def generate(draft: Tensor | None, draft_length: int, params: SamplingParams, length: int) -> tuple[list[int], int]:
    """The output, at least `length` tokens of it, and how many candidates were accepted on the way."""
    tokens, accepted = list(PROMPT), 0
    while len(tokens) < len(PROMPT) + length:
        ahead = list(tokens)
        if draft is not None:
            for _ in range(draft_length):
                ahead += next_tokens(draft, ahead, 1, params)
        candidates = ahead[len(tokens) :]
        outcome = accept(candidates, next_tokens(TARGET, ahead, len(candidates) + 1, params))
        tokens += outcome.token_ids
        accepted += outcome.accepted_count
    return tokens[len(PROMPT) :], accepted


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("quality", DRAFTS)
def test_no_draft_changes_the_output(quality: str, settings: str) -> None:
    length, params = 24, SETTINGS[settings]
    plain, _ = generate(None, 0, params, length)
    for draft_length in range(1, 9):
        output, accepted = generate(DRAFTS[quality], draft_length, params, length)
        assert output[:length] == plain
        if quality == "perfect":
            rounds = math.ceil(length / (draft_length + 1))
            assert accepted == rounds * draft_length


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.5])
def test_shared_noise_matches_as_often_as_the_closed_form_says(spread: float) -> None:
    """Over 20,000 positions within 5 deviations; false alarm 6e-7 a case. Daliri, Musco, Suresh 2024 (2408.07978)."""
    n, generator = 20_000, torch.Generator().manual_seed(40)
    target = torch.randn(V, generator=generator) * 1.5
    draft = target + torch.randn(V, generator=generator) * spread
    request = DrawRequest(SamplingParams(seed=50), [0] * n, 1, 1, n)
    (ours,), (theirs,) = (draw(logits.expand(n, V), [request]) for logits in (target, draft))
    found = sum(a.token_id == b.token_id for a, b in zip(ours, theirs, strict=True)) / n
    target_probs, draft_probs = target.double().softmax(-1), draft.double().softmax(-1)
    ratios = torch.maximum(target_probs / target_probs[:, None], draft_probs / draft_probs[:, None])  # [i, j]
    expected = float((1 / ratios.sum(1)).sum())
    assert abs(found - expected) < 5 * math.sqrt(expected * (1 - expected) / n)
    distance = float((target_probs - draft_probs).abs().sum() / 2)
    assert (1 - distance) / (1 + distance) <= expected <= 1 - distance


def test_a_deterministic_draft_is_accepted_as_often_as_the_target_draws_its_token() -> None:
    """One-hot drafts lose nothing to shared noise: 20,000 positions within 5 deviations; false alarm 6e-7."""
    n, probs = 20_000, TARGET[0].double().softmax(-1)
    token_id, share = int(probs.argmax()), float(probs.max())
    (draws,) = draw(TARGET[0].expand(n, V), [DrawRequest(SamplingParams(seed=60), [0] * n, 1, 1, n)])
    found = sum(drawn.token_id == token_id for drawn in draws) / n
    assert abs(found - share) < 5 * math.sqrt(share * (1 - share) / n)
