"""The statistics against numpy's and the standard library's."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from forerun.bench.stats import percentile, ratio_of_sums, spread


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
def test_percentiles_are_those_of_numpy(count: int) -> None:
    draw = random.Random(count)
    values = sorted(draw.lognormvariate(0, 1) for _ in range(count))
    for share in (0, 0.01, 0.25, 0.5, 0.75, 0.95, 0.99, 1):
        assert percentile(values, share) == pytest.approx(float(np.quantile(values, share)))


def test_a_spread_is_that_of_the_values_in_any_order() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    found = spread(values)
    assert found is not None
    assert (found.count, found.low, found.p50, found.high) == (5, 1.0, statistics.median(values), 5.0)
    assert found.mean == statistics.fmean(values)
    assert [found.p25, found.p50, found.p75] == statistics.quantiles(values, n=4, method="inclusive")
    assert spread([]) is None


def test_the_range_of_a_ratio_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for trial in range(60):
        draw = random.Random(trial)
        pairs = [(2 * base * draw.uniform(0.8, 1.2), base) for base in (draw.uniform(1, 2) for _ in range(30))]
        found = ratio_of_sums(pairs, seed=trial)
        assert found is not None and found.low <= found.value <= found.high
        held += found.low <= 2 <= found.high
    assert held >= 50  # of 57 expected; the chance of fewer is below 1 in 300


def test_pairs_that_agree_leave_no_doubt() -> None:
    found = ratio_of_sums([(3.0, 2.0), (6.0, 4.0)])
    assert found is not None
    assert (found.value, found.low, found.high) == (1.5, 1.5, 1.5)
    assert ratio_of_sums([]) is None
    assert ratio_of_sums([(1.0, 0.0)]) is None
