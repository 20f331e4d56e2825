"""The statistics of a report: percentiles, and how sure a ratio is.

Plain lists and the standard library: a report must be made again anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """Where a list of values lies."""

    count: int
    mean: float
    low: float
    p25: float
    p50: float
    p75: float
    p95: float
    p99: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and the range that holds it in 95 of 100 resamplings of the requests."""

    value: float
    low: float
    high: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of a sorted list lies, interpolated linearly between neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> Spread | None:
    """None without values."""
    if not values:
        return None
    ordered = sorted(values)
    p25, p50, p75, p95, p99 = (percentile(ordered, share) for share in (0.25, 0.5, 0.75, 0.95, 0.99))
    return Spread(len(ordered), sum(ordered) / len(ordered), ordered[0], p25, p50, p75, p95, p99, ordered[-1])


def ratio_of_sums(pairs: Sequence[tuple[float, float]], seed: int = 0) -> Estimate | None:
    """Sum of the firsts over sum of the seconds, with a bootstrap over the pairs. None if it has no value.

    Pairs are one prompt measured both ways, so that a hard prompt does not count as a slow variant.
    """
    if not pairs or sum(second for _, second in pairs) <= 0:
        return None
    draw = random.Random(seed)
    ratios = []
    for _ in range(RESAMPLES):
        sample = draw.choices(pairs, k=len(pairs))
        below = sum(second for _, second in sample)
        ratios.append(sum(first for first, _ in sample) / below if below else float("inf"))
    ratios.sort()
    value = sum(first for first, _ in pairs) / sum(second for _, second in pairs)
    return Estimate(value, percentile(ratios, 0.025), percentile(ratios, 0.975))
