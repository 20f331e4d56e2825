"""A ranking counts chances rather than draws, falls back on the order of ids, and goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path

import torch

from training.coverage import place_of
from training.ranking import Census, load, rank


def test_what_is_likelier_comes_first_and_the_order_of_ids_decides_the_rest() -> None:
    expected = torch.zeros(100, dtype=torch.float64)
    expected[70], expected[40] = 30.0, 10.0
    ranked = rank(expected)
    assert ranked.dtype == torch.int32 and sorted(ranked.tolist()) == list(range(100))
    assert ranked[:5].tolist() == [70, 40, 0, 1, 2]
    assert rank(torch.zeros(10, dtype=torch.float64)).tolist() == list(range(10))


def test_draws_follow_the_distribution_that_is_counted() -> None:
    torch.manual_seed(0)
    census = Census(torch.zeros(4, dtype=torch.float64))
    logits = torch.tensor([[0.0, float("-inf"), 0.0, float("-inf")]]).repeat(400, 1)
    drawn = census.draw(logits, torch.full((400,), 0.9))
    assert set(drawn.tolist()) == {0, 2}
    assert 140 < int((drawn == 0).sum()) < 260
    torch.testing.assert_close(census.expected, torch.tensor([200.0, 0.0, 200.0, 0.0], dtype=torch.float64))
    assert census.tokens == 400


def test_a_census_comes_back_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "census.npz"
    assert load(path, 3).tokens == 0
    Census(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), 6, 2).save(path)
    again = load(path, 3)
    assert (again.expected.tolist(), again.tokens, again.batches) == ([1.0, 2.0, 3.0], 6, 2)


def test_every_head_knows_the_end_token() -> None:
    place = place_of([3, 1, 0, 2], always=[2])
    assert place.tolist() == [2, 1, 0, 0]
