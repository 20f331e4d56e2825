"""The step loop: a step that raises fails its sessions, a bug in the bookkeeping ends the service, nothing hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from draft_service.assembly import assemble, serving, weightless
from draft_service.drafters.ngram import NgramDrafter
from forerun import telemetry
from forerun.runtime.step_loop import StepLoop
from forerun.runtime.stream import Stream
from forerun.v1 import draft_pb2, types_pb2

WAIT_S = 10.0


class Steps:
    """An engine with so many steps, each executed as its number; `done` when all were handed back."""

    def __init__(self, count: int) -> None:
        self.completed: list[int] = []
        self.failed: list[str] = []
        self.done = asyncio.Event()
        self._left = list(range(count))

    def plan(self, now: float) -> str | float | None:
        if self._left:
            return str(self._left.pop(0))
        self.done.set()
        return None

    def plan_ahead(self, step: str, now: float) -> str | None:
        return None

    def complete(self, step: str, outcome: int, now: float) -> None:
        self.completed.append(outcome)

    def fail(self, step: str, error: Exception, now: float) -> None:
        self.failed.append(step)


def test_a_step_that_raises_is_handed_back_as_failed_and_the_next_ones_run() -> None:
    async def run() -> Steps:
        steps = Steps(5)
        loop = StepLoop(steps, lambda step: lambda: 6 // (int(step) - 2), "steps")
        running = asyncio.create_task(loop.run())
        await asyncio.wait_for(steps.done.wait(), WAIT_S)
        running.cancel()
        return steps

    steps = asyncio.run(run())
    assert (steps.completed, steps.failed) == ([-3, -6, 6, 3], ["2"])


class Forgetful(NgramDrafter):
    """A drafter with a bug in its bookkeeping."""

    def settle(self, batch: Any, proposals: Any) -> None:
        raise KeyError("a bug")


def test_a_bug_in_the_bookkeeping_ends_the_service_instead_of_leaving_it_mute() -> None:
    async def run() -> None:
        draft = assemble(weightless(Forgetful(1, 2), "forgetful", 4), telemetry.setup("forerun-draft"))
        async with serving(draft, "127.0.0.1", 0):
            opened = draft_pb2.DraftOpen(
                prompt_token_ids=[1, 2, 1, 2],
                sampling=types_pb2.SamplingParams(top_p=1, repetition_penalty=1, max_tokens=9),
                draft_length=2,
                window=2,
            )
            stream: Stream[Any, Any] = Stream("gateway", lambda: None)
            draft.engine.handle(stream, draft_pb2.DraftRequestEntry(session_id=1, attachment=1, open=opened), 0.0)
            assert stream.queued == 0
            draft.loop.wake()
            await asyncio.wait_for(asyncio.Event().wait(), WAIT_S)

    with pytest.raises(KeyError, match="a bug"):
        asyncio.run(run())
