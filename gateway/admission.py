"""Who may generate now, who waits, who is refused. First come, first served; both numbers are bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forerun.errors import Overloaded

SECONDS_A_REQUEST = 1.0  # guess until requests have finished
SMOOTHING = 0.1


class Admission:
    """Slots for running requests, and a queue for those that wait for one."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._queue: deque[asyncio.Future[None]] = deque()
        self._request_s = SECONDS_A_REQUEST
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A slot for the block's duration, after the wait for it. Raises Overloaded if too many wait already."""
        await self._enter()
        started = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._request_s += SMOOTHING * (asyncio.get_running_loop().time() - started - self._request_s)
            self._leave()

    async def _enter(self) -> None:
        if self.running < self._max_running and not self._queue:
            self.running += 1
            return
        if len(self._queue) >= self._max_waiting:
            retry_after_s = max(0.1, self._request_s * (len(self._queue) + 1) / self._max_running)
            raise Overloaded(f"{self.running} requests run and {len(self._queue)} wait already", retry_after_s)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn  # whoever leaves hands over its slot
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            else:
                self._queue.remove(turn)
            raise

    def _leave(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1
