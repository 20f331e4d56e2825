"""Runs `forerun up` behind another command: starts it, waits until it is ready, stops it at the end.

What the services say goes to a log file, whose end is shown if they do not start.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from forerun.bench import variants
from forerun.bench.gateway import Reachable
from forerun.cli.child import guarded
from forerun.cli.plan import cores, make_plan
from forerun.cli.services import pulled
from forerun.errors import InvalidArgument, Unavailable

_STOP_S = 30.0
_LAST_LINES = 12
UP = [sys.executable, "-m", "forerun", "up"]
FLAGS = ("target", "dtype", "device", "draft_device", "threads", "start_timeout", "cache", "window", "config")
_FREE_PORTS = {"port": 0, "target_port": 0, "draft_port": 0}
_STARTED = re.compile(r"started (\w+) pid=(\d+)")


class Launcher:
    """Starts the services of a drafter. A `forerun.bench.runner.Launch`.

    Models are fetched when it is made, where progress can be seen; raises Failure or ConfigError if that cannot be.
    """

    def __init__(self, flags: Mapping[str, Any], drafters: Sequence[str]) -> None:
        self.logs = Path(tempfile.mkdtemp(prefix="forerun-bench-"))
        self._flags = {name: flags[name] for name in FLAGS if flags[name] is not None} | _FREE_PORTS
        self._model: str = flags["draft"] or self._configured_model(drafters)
        for drafter in drafters:
            plan = make_plan(self._flags | {"draft": self._draft(drafter)}, os.environ, cores())
            for model in plan.models:
                pulled(model, plan.cache)

    def __call__(self, drafter: str) -> AbstractAsyncContextManager[Reachable]:
        given = self._flags | {"draft": self._draft(drafter)}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        return services(options, self.logs / f"{drafter.replace('/', '-')}.log")

    def _draft(self, drafter: str) -> str:
        """The draft that `forerun up` is to run for a drafter."""
        names = {
            variants.MODEL: self._model,
            variants.ANY_DRAFT: self._model,
            variants.NGRAM_MODEL: f"{variants.NGRAM}+{self._model}",
        }
        return names.get(drafter, drafter)

    def _configured_model(self, drafters: Sequence[str]) -> str:
        """What `model` means without --draft: what `up` would take, if that is a model."""
        plan = make_plan(self._flags, os.environ, cores())
        model = variants.NGRAM if plan.draft is None else plan.draft.model.removeprefix("ngram+")
        wanted = {variants.MODEL, variants.ANY_DRAFT, variants.NGRAM_MODEL}.intersection(drafters)
        if wanted and model == variants.NGRAM:
            raise InvalidArgument("draft", f"is needed: which draft model is `model`, for {plan.target.model}?")
        return model


@asynccontextmanager
async def services(
    options: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
) -> AsyncIterator[Reachable]:
    """The gateway and the services' processes, as long as the block lasts. Raises Unavailable if they do not start.

    `variables` are added to the environment.
    """
    command, environment = guarded([*UP, *options]), os.environ | (variables or {})
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=file, env=environment, start_new_session=True
        )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        said = _read(log)
        if not line.startswith("ready:"):
            raise Unavailable(f"its services did not start; the end of {log}:\n{_end(said)}")
        yield Reachable(line.split()[-1], {name: int(pid) for name, pid in _STARTED.findall(said)})
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), _STOP_S)
    except TimeoutError:
        process.kill()  # its services die with it
        await process.wait()


def _read(log: Path) -> str:
    return log.read_text(errors="replace")


def _end(log: str) -> str:
    lines = log.splitlines()
    # What `up` itself says last is the reason; before it come the services' own lines.
    reasons = [index for index, line in enumerate(lines) if line.startswith("forerun up:")]
    return "\n".join(lines[reasons[-1] :] if reasons else lines[-_LAST_LINES:])
