"""A target over a tiny model, without its service and without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forerun.runtime.kv_cache import KvCache
from forerun.runtime.model import load_model
from forerun.runtime.model_runner import ModelRunner
from forerun.runtime.stream import Stream
from forerun.telemetry import setup
from forerun.v1 import target_pb2, types_pb2
from target_service.assembly import Executor
from target_service.engine import TargetEngine, TargetLimits
from target_service.patience import Patience
from target_service.scheduler import Scheduler
from target_service.step import Step
from target_service.tracing import TargetTrace

VOCABULARY, BLOCK_SIZE, OUTPUT = 320, 4, 12


class Rig:
    """An engine, its model, one gateway's stream, and how many tokens and steps there were."""

    def __init__(self, folder: Path, reuse: bool, blocks: int = 128, budget: int = 64, overlaps: bool = False) -> None:
        model = load_model(folder)
        limits = TargetLimits(VOCABULARY, min(512, blocks * BLOCK_SIZE), (), 16)
        self.cache = KvCache(blocks, BLOCK_SIZE, reuse)
        scheduler = Scheduler(Patience(0.0), budget)
        self.engine = TargetEngine(limits, self.cache, scheduler, TargetTrace(setup("forerun-target")), overlaps)
        self.stream: Any = Stream("gateway", lambda: None)
        self.fed = 0
        self.ahead = 0  # steps begun before the last one's end
        self._begun: tuple[Step, Callable[[], Any]] | None = None
        self.now = 1.0
        self._execute = Executor(ModelRunner(model, blocks, BLOCK_SIZE))
        self._numbers = 0
        self.engine.sessions.connect(self.stream)

    def say(self, number: int, **content: Any) -> None:
        entry = target_pb2.TargetRequestEntry(session_id=number, attachment=1, **content)
        self.engine.handle(self.stream, entry, self.now)

    def open(self, prompt: Sequence[int], commit_limit: int = 1000, **changes: Any) -> int:
        self._numbers += 1
        sampling = types_pb2.SamplingParams(
            **{"top_p": 1, "repetition_penalty": 1, "max_tokens": OUTPUT, "ignore_eos": True} | changes
        )
        opening = target_pb2.TargetOpen(prompt_token_ids=prompt, sampling=sampling, commit_limit=commit_limit)
        self.say(self._numbers, open=opening)
        return self._numbers

    def step(self) -> bool:
        """One step, as the step loop does it; whether there was something to do."""
        self.now += 0.01
        if self._begun is None:
            planned = self.engine.plan(self.now)
            if not isinstance(planned, Step):
                return planned is not None
            self._begun = self._begin(planned)
        step, end = self._begun
        following = self.engine.plan_ahead(step, self.now)
        self._begun = self._begin(following) if isinstance(following, Step) else None
        self.ahead += self._begun is not None
        self.engine.complete(step, end(), self.now)
        return True

    def _begin(self, step: Step) -> tuple[Step, Callable[[], Any]]:
        self.fed += sum(len(part.forward.token_ids) for part in step.parts)
        return step, self._execute(step)

    def run(self) -> dict[int, list[int]]:
        """Steps until nothing is left to do; the tokens committed meanwhile, by session."""
        while self.step():
            pass
        committed: dict[int, list[int]] = {}
        for entry in self.stream.take():
            assert not entry.HasField("failed"), entry
            committed.setdefault(entry.session_id, []).extend(entry.verdict.token_ids)
        return committed

    def answer(self, prompt: Sequence[int]) -> list[int]:
        number = self.open(prompt)
        return self.run()[number]
