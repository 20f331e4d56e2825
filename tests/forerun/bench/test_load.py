"""Levels of load, and arrivals that come again with their seed."""

from __future__ import annotations

import pytest

from forerun.bench.load import Load, parse_loads, poisson_arrivals, portions
from forerun.errors import InvalidArgument


def test_levels_are_read_sorted_and_without_doubles() -> None:
    assert parse_loads("4, 1,4", "0.5") == [Load(concurrency=1), Load(concurrency=4), Load(rate=0.5)]
    assert [load.label for load in parse_loads("4", "0.5")] == ["concurrency 4", "0.5 requests/s"]


@pytest.mark.parametrize(
    ("concurrency", "rate", "message"),
    [
        ("0", "", "concurrency: '0' is not a whole number from 1 to 4096"),
        ("two", "", "concurrency: 'two' is not"),
        ("", "-1", "rate: '-1' is not a number of requests a second above 0"),
        ("", "nan", "rate: 'nan' is not"),
        ("", "fast", "rate: 'fast' is not"),
        ("", "", "concurrency: names no level"),
    ],
)
def test_a_wrong_level_is_named(concurrency: str, rate: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_loads(concurrency, rate)


def test_a_level_has_at_least_four_requests_for_each_at_once() -> None:
    assert [Load(concurrency=level).requests(0) for level in (1, 4, 16)] == [4, 16, 64]
    assert Load(concurrency=4).requests(3) == 16
    assert Load(concurrency=1).requests(20) == 20
    assert (Load(rate=2.0).requests(0), Load(rate=2.0).requests(5)) == (16, 5)


def test_arrivals_are_poisson_and_seeded() -> None:
    times = poisson_arrivals(rate=4.0, count=4000, seed=3)
    assert times == poisson_arrivals(4.0, 4000, 3) != poisson_arrivals(4.0, 4000, 4)
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    assert min(gaps) > 0
    assert sum(gaps) / len(gaps) == pytest.approx(0.25, rel=0.05)  # four standard errors are 0.063
    # The gaps of a Poisson process are exponential: 1/e of them are longer than their mean.
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)


def test_portions_share_everything_out() -> None:
    assert [list(part) for part in portions(range(7), 3)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [list(part) for part in portions(range(2), 5)] == [[0], [1]]
