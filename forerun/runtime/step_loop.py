"""Drives an engine: plans a step on the event loop, runs it on worker threads, hands the outcome back.

Where the engine knows a next step before the one that runs has ended, that one is begun behind it, so that a device
does not wait for the host. The engine's bookkeeping never leaves the event loop and the models never leave the workers,
of which one begins steps and one waits for them: neither needs a lock. What a step is and what it computes are the
engine's and the executor's business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

StepT = TypeVar("StepT")
OutcomeT = TypeVar("OutcomeT")
OutcomeT_contra = TypeVar("OutcomeT_contra", contravariant=True)

logger = logging.getLogger(__name__)


class Engine(Protocol[StepT, OutcomeT_contra]):
    """What the loop needs of an engine. Times are `time.monotonic` seconds."""

    def plan(self, now: float) -> StepT | float | None:
        """The next step; or the time to ask again; or None to be asked after the next entry."""

    def plan_ahead(self, step: StepT, now: float) -> StepT | float | None:
        """A step to begin behind one that runs; or the time to ask again; or None to be asked after the next entry."""

    def complete(self, step: StepT, outcome: OutcomeT_contra, now: float) -> None:
        """Takes the outcome of a step."""

    def fail(self, step: StepT, error: Exception, now: float) -> None:
        """Takes the failure of a step."""


@dataclass(frozen=True, slots=True)
class Begun(Generic[StepT, OutcomeT]):
    """A step that was given to the workers."""

    step: StepT
    begun: Future[Callable[[], OutcomeT]]

    def end(self) -> OutcomeT:
        """Waits until it is begun, then for the outcome."""
        return self.begun.result()()


class StepLoop(Generic[StepT, OutcomeT]):
    """Runs planned steps, one after the other, for as long as `run` is awaited.

    `begin` starts one; what it returns waits for the outcome. Each is called on one thread, in the order of the steps.
    """

    def __init__(
        self, engine: Engine[StepT, OutcomeT], begin: Callable[[StepT], Callable[[], OutcomeT]], name: str
    ) -> None:
        self._engine = engine
        self._begin = begin
        self._wake = asyncio.Event()
        self._beginner = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-begin")
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
        """Never returns; cancel it to stop. Steps that were begun are waited for."""
        running: Begun[StepT, OutcomeT] | None = None
        try:
            while True:
                if running is None:
                    self._wake.clear()
                    planned = self._engine.plan(time.monotonic())
                    if planned is None or isinstance(planned, float):
                        await self._sleep(planned)
                        continue
                    running = self._submit(planned)
                running = await self._finish(running)
        finally:
            self._beginner.shutdown(wait=True)
            self._worker.shutdown(wait=True)

    def _submit(self, step: StepT) -> Begun[StepT, OutcomeT]:
        return Begun(step, self._beginner.submit(self._begin, step))

    async def _finish(self, begun: Begun[StepT, OutcomeT]) -> Begun[StepT, OutcomeT] | None:
        """Waits for the outcome of a step and hands it back; returns the step that was begun behind it meanwhile."""
        end = asyncio.get_running_loop().run_in_executor(self._worker, begun.end)
        end.add_done_callback(lambda _: self._wake.set())
        following = None
        while not end.done():
            self._wake.clear()
            ahead = None if following is not None else self._engine.plan_ahead(begun.step, time.monotonic())
            if ahead is None or isinstance(ahead, float):
                await self._sleep(ahead)
            else:
                following = self._submit(ahead)
        try:
            outcome = end.result()
        except Exception as error:
            logger.exception("a step failed")
            self._engine.fail(begun.step, error, time.monotonic())
        else:
            self._engine.complete(begun.step, outcome, time.monotonic())
        return following

    async def _sleep(self, until: float | None) -> None:
        if until is None:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self._wake.wait()
        except TimeoutError:
            pass
