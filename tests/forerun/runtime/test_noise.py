"""The noise: known answers for the bits, statistics for what is made of them, and independence of everything else.

Seeds are fixed, so a pass stays a pass; the false-alarm rates say how likely an honest generator was to fail once.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from forerun.runtime.noise import KEY_STEPS, MASK, MULTIPLIERS, ROUNDS, _gumbel_from_words_, gumbel_noise, philox

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)


def philox_of_ints(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """The paper's definition, one counter at a time in Python's integers."""
    x, (k0, k1) = list(counter), key
    for _ in range(ROUNDS):
        a, b = x[0] * MULTIPLIERS[0], x[2] * MULTIPLIERS[1]
        x = [b >> 32 ^ x[1] ^ k0, b & MASK, a >> 32 ^ x[3] ^ k1, a & MASK]
        k0, k1 = k0 + KEY_STEPS[0] & MASK, k1 + KEY_STEPS[1] & MASK
    return x


def correlation(a: Tensor, b: Tensor) -> float:
    a, b = a.double().flatten() - a.double().mean(), b.double().flatten() - b.double().mean()
    return float((a * b).mean() / (a.square().mean() * b.square().mean()).sqrt())


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((MASK,) * 4, (MASK, MASK), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_philox_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    """From Random123's kat_vectors, philox4x32 with 10 rounds."""
    a, b, c, d = (torch.tensor([word]) for word in counter)
    found = philox((a, b, c, d), (torch.tensor([key[0]]), torch.tensor([key[1]])))
    assert [int(word) for word in found] == list(words)


@pytest.mark.parametrize(
    ("seed", "position"), [(0, 0), (7, 1), (MASK, MASK), (MASK << 32, 1 << 32), (2**64 - 1, 2**40)]
)
def test_every_entry_is_the_word_of_its_own_token(seed: int, position: int) -> None:
    row = gumbel_noise([seed], [position], 11)[0].tolist()
    for token_id, value in enumerate(row):
        counter = (token_id // 4, position & MASK, position >> 32, 0)
        word = philox_of_ints(counter, (seed & MASK, seed >> 32))[token_id % 4]
        assert value == pytest.approx(-math.log(-math.log1p(-(word + 0.5) * 2.0**-32)), abs=2e-6)


def test_an_entry_depends_on_nothing_but_seed_position_and_token() -> None:
    seeds, positions = [3, 2**63 + 5, 3, 11], [9, 9, 10, 2**33]
    together = gumbel_noise(seeds, positions, 4099)
    for row, seed, position in zip(together, seeds, positions, strict=True):
        assert torch.equal(row, gumbel_noise([seed], [position], 4099)[0])
        assert torch.equal(row[:1237], gumbel_noise([seed], [position], 1237)[0])
    many = gumbel_noise(list(range(3000)), [5] * 3000, 67)  # more than are hashed together
    assert torch.equal(many[2999], gumbel_noise([2999], [5], 67)[0])


def test_no_rows_give_no_noise() -> None:
    assert gumbel_noise([], [], 10).shape == (0, 10)


def test_extreme_words_stay_finite_and_keep_their_order() -> None:
    lowest = torch.tensor([0, 1, 2, 3, 1 << 31, MASK - 1, MASK]).float()
    values = _gumbel_from_words_(lowest).double()
    assert values[0] == pytest.approx(33 * math.log(2), rel=1e-6)
    assert values[1] == pytest.approx(-math.log(1.5 * 2.0**-32), rel=1e-6)
    assert values[-1] > -2.82
    assert bool((values[:-1] >= values[1:]).all())


@pytest.mark.parametrize("seed", [1, 2**64 - 1])
def test_noise_is_gumbel(seed: int) -> None:
    """Kolmogorov-Smirnov over 400,000 values; false alarm 1e-6 a case."""
    values = gumbel_noise([seed] * 8, list(range(8)), 50_000).double().flatten().sort().values
    n = len(values)
    expected = torch.exp(-torch.exp(-values))
    rank = torch.arange(1, n + 1, dtype=torch.float64)
    distance = max(float((rank / n - expected).max()), float((expected - (rank - 1) / n).max()))
    assert distance < math.sqrt(-math.log(1e-6 / 2) / 2 / n), f"seed {seed}"


def test_the_winning_tail_is_gumbel_too() -> None:
    """How many of 400,000 exceed the 2^-6 ... 2^-16 quantiles: within 5.5 deviations; false alarm below 1e-6 in all."""
    values = gumbel_noise([77] * 8, list(range(100, 108)), 50_000).double()
    for power in range(6, 17):
        share = 2.0**-power
        expected = values.numel() * share
        found = int((values > -math.log(-math.log1p(-share))).sum())
        assert abs(found - expected) < 5.5 * math.sqrt(expected), f"2^-{power}"


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 33, 63])
def test_neighbouring_seeds_are_uncorrelated(bit: int) -> None:
    """100,000 pairs, bound 5.5 / sqrt(n): false alarm 4e-8 a case."""
    a, b = gumbel_noise([12345, 12345 ^ 1 << bit], [40, 40], 100_000)
    assert abs(correlation(a, b)) < 5.5 / math.sqrt(100_000)


@pytest.mark.parametrize("distance", [1, 2, 3, 64, 1 << 32])
def test_neighbouring_positions_are_uncorrelated(distance: int) -> None:
    """100,000 pairs, bound 5.5 / sqrt(n): false alarm 4e-8 a case."""
    a, b = gumbel_noise([99, 99], [1000, 1000 + distance], 100_000)
    assert abs(correlation(a, b)) < 5.5 / math.sqrt(100_000)


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 8, 4096])
def test_neighbouring_tokens_are_uncorrelated_at_one_position(distance: int) -> None:
    """Some 100,000 pairs, bound 5.5 / sqrt(n): false alarm 4e-8 a case."""
    row = gumbel_noise([5], [17], 100_000)[0]
    assert abs(correlation(row[:-distance], row[distance:])) < 5.5 / math.sqrt(100_000 - distance)


def test_neighbouring_tokens_are_uncorrelated_over_positions() -> None:
    """28 pairs of tokens over 20,000 positions, bound 5.5 / sqrt(n): false alarm 1e-6 in all."""
    found = torch.corrcoef(gumbel_noise([5] * 20_000, list(range(20_000)), 8).double().T)
    assert float((found - torch.eye(8)).abs().max()) < 5.5 / math.sqrt(20_000)


def test_seed_and_position_do_not_stand_in_for_each_other() -> None:
    a, b = gumbel_noise([1, 2], [2, 1], 1000)
    assert not torch.equal(a, b)
