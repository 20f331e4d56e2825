"""A simulated network under virtual time: a clock that jumps from event to event, and pipes that carry messages.

Messages are serialised when sent and parsed when delivered, so the two ends share nothing. What a pipe may do to them
is its `Weather`; after `calm_at` it neither loses nor repeats anything.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

START = 100.0  # virtual seconds; not zero, which some code takes for "never"


class Clock:
    """Virtual time. It stands in for the module `time` where the gateway asks for the time."""

    def __init__(self) -> None:
        self.now = START
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return round(self.now * 1e9)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Calls `action` at a time; those of the same time in the order in which they were asked for."""
        heapq.heappush(self._events, (max(when, self.now), next(self._order), action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Calls `action` after a delay in seconds."""
        self.at(self.now + delay, action)

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Lets events happen until a time, or until `done`."""
        while self._events and self._events[0][0] <= until and not done():
            self.now, _, action = heapq.heappop(self._events)
            action()


@dataclass(frozen=True)
class Weather:
    """What happens to messages on their way."""

    delay_ms: tuple[float, float] = (1.0, 1.0)  # least and most, each hop
    overtaking: bool = False  # entries travel one by one; those of one session keep their order
    scrambling: bool = False  # and even those of one session may overtake each other
    lost: float = 0.0  # share of the entries (without overtaking: messages)
    repeated: float = 0.0


class Pipe:
    """One direction of one stream."""

    def __init__(
        self, clock: Clock, weather: Weather, calm_at: float, seed: int, deliver: Callable[[Any], None]
    ) -> None:
        self.open = True
        self._clock = clock
        self._weather = weather
        self._calm_at = calm_at
        self._random = random.Random(seed)
        self._deliver = deliver
        self._last: dict[int | None, float] = {}  # when the latest unit of a session arrives

    def send(self, message: Any) -> None:
        """Puts a message on its way."""
        if not self._weather.overtaking:
            self._launch(message, None)
            return
        for entry in message.entries:
            self._launch(type(message)(entries=[entry]), entry.session_id)

    def _launch(self, message: Any, order: int | None) -> None:
        data, parse = message.SerializeToString(), type(message).FromString
        for _ in range(self._copies()):
            delay = self._random.uniform(*self._weather.delay_ms) / 1000
            arrival = self._clock.now + delay
            if not self._weather.scrambling:
                arrival = self._last[order] = max(arrival, self._last.get(order, 0.0))
            self._clock.at(arrival, lambda: self._arrive(parse(data)))

    def _copies(self) -> int:
        weather = self._weather
        if self._clock.now >= self._calm_at:
            return 1
        lot = self._random.random()
        if lot < weather.lost:
            return 0
        return 2 if lot > 1 - weather.repeated else 1

    def _arrive(self, message: Any) -> None:
        if self.open:
            self._deliver(message)
