"""How hard the gateway is pressed: so many requests at once, or so many arriving a second.

At once (a closed loop): as soon as one is answered, the next is sent. Arriving (an open loop): they come at the times
of a seeded Poisson process, whether or not the earlier ones are answered, as from users who do not know each other.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from forerun.errors import InvalidArgument

MAX_CONCURRENCY = 4096
REQUESTS_PER_LEVEL = 4  # for each request at once
RATE_REQUESTS = 16


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """`rate` is requests a second, or zero in a closed loop of `concurrency` requests at once."""

    rate: float = 0.0
    concurrency: int = 0

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.rate:g} requests/s" if self.rate else f"concurrency {self.concurrency}"

    @property
    def short(self) -> str:
        """For a mark in a plot."""
        return f"{self.rate:g}" if self.rate else str(self.concurrency)

    def requests(self, wanted: int) -> int:
        """How many requests are measured: those wanted, and at least four for each at once."""
        return max(wanted, REQUESTS_PER_LEVEL * self.concurrency) if self.concurrency else wanted or RATE_REQUESTS


def parse_loads(concurrency: str, rate: str) -> list[Load]:
    """Reads `1,4,16` and `0.5,2`, either of which may be empty. Raises InvalidArgument."""
    loads = [Load(concurrency=_whole(part)) for part in _parts(concurrency)]
    loads += [Load(rate=_positive(part)) for part in _parts(rate)]
    if not loads:
        raise InvalidArgument("concurrency", "names no level; for example 1,4,16")
    return sorted(set(loads))


def poisson_arrivals(rate: float, count: int, seed: int) -> list[float]:
    """When each request is sent, in seconds from the start; the same for the same seed."""
    draw = random.Random(seed)
    now, times = 0.0, []
    for _ in range(count):
        now += draw.expovariate(rate)
        times.append(now)
    return times


def portions(items: Sequence[int], count: int) -> list[Sequence[int]]:
    """`items` in `count` runs of nearly equal length, none empty as long as there are enough."""
    edges = [len(items) * index // count for index in range(count + 1)]
    return [items[start:end] for start, end in pairwise(edges) if end > start]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_CONCURRENCY:
        raise InvalidArgument("concurrency", f"{text!r} is not a whole number from 1 to {MAX_CONCURRENCY}")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InvalidArgument("rate", f"{text!r} is not a number of requests a second above 0")
    return value
