"""Clients' messages give way to the services'.

Many clients' messages take longer to write than a draft takes. Written first, they keep the target waiting for its
candidates; written once the candidates are on their way, they cost nothing, since the target is busy then.
"""

from __future__ import annotations

import asyncio

LONGEST_S = 0.004  # that a message waits


class GiveWay:
    """Holds back clients' news, each until it is released and none for long. One timer serves them all."""

    def __init__(self) -> None:
        self._held: set[asyncio.Event] = set()
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, news: asyncio.Event) -> None:
        """Sets the event soon, if nobody releases it before."""
        self._held.add(news)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LONGEST_S, self._release_all)

    def release(self, news: asyncio.Event) -> None:
        """Sets the event, if it was held."""
        if news in self._held:
            self._held.remove(news)
            news.set()

    def _release_all(self) -> None:
        self._timer = None
        held, self._held = self._held, set()
        for news in held:
            news.set()
