"""Drives an engine: plans a step on the event loop, runs it on one worker thread, hands the outcome back.

The engine's bookkeeping never leaves the event loop and the models never leave the worker, so neither needs a lock.
What a step is and what it computes are the engine's and the executor's business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Generic, Protocol, TypeVar

StepT = TypeVar("StepT")
OutcomeT = TypeVar("OutcomeT")
OutcomeT_contra = TypeVar("OutcomeT_contra", contravariant=True)

logger = logging.getLogger(__name__)


class Engine(Protocol[StepT, OutcomeT_contra]):
    """What the loop needs of an engine. Times are `time.monotonic` seconds."""

    def plan(self, now: float) -> StepT | float | None:
        """The next step; or the time to ask again; or None to be asked after the next entry."""

    def complete(self, step: StepT, outcome: OutcomeT_contra, now: float) -> None:
        """Takes the outcome of a step."""

    def fail(self, step: StepT, error: Exception, now: float) -> None:
        """Takes the failure of a step."""


class StepLoop(Generic[StepT, OutcomeT]):
    """Runs `execute` on planned steps, one at a time, for as long as `run` is awaited."""

    def __init__(self, engine: Engine[StepT, OutcomeT], execute: Callable[[StepT], OutcomeT], name: str) -> None:
        self._engine = engine
        self._execute = execute
        self._wake = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=name)

    def wake(self) -> None:
        """Has the engine asked for a step again, because something arrived."""
        self._wake.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs for as long as the block lasts. A bug that ends the loop ends the block, which raises it."""
        block = asyncio.current_task()
        stepping = asyncio.create_task(self.run())
        stepping.add_done_callback(lambda task: None if task.cancelled() or block is None else block.cancel())
        try:
            yield
        finally:
            stepping.cancel()
            with suppress(asyncio.CancelledError):
                await stepping

    async def run(self) -> None:
        """Never returns; cancel it to stop. A running step is waited for."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._wake.clear()
                planned = self._engine.plan(time.monotonic())
                if planned is None or isinstance(planned, float):
                    await self._sleep(planned)
                    continue
                try:
                    outcome = await loop.run_in_executor(self._worker, self._execute, planned)
                except Exception as error:
                    logger.exception("a step failed")
                    self._engine.fail(planned, error, time.monotonic())
                else:
                    self._engine.complete(planned, outcome, time.monotonic())
        finally:
            self._worker.shutdown(wait=True)

    async def _sleep(self, until: float | None) -> None:
        if until is None:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self._wake.wait()
        except TimeoutError:
            pass
