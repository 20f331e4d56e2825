"""Keeps a set of service processes: starts them, waits until they serve, restarts them, drains them in order.

It knows processes, health and signals, and no setting of any service. Everything it starts dies with this process
(see `child`); everything it started is gone when `run` returns. Run it in the main thread.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forerun.cli.child import guarded
from forerun.cli.failure import INTERRUPTED, Failure
from forerun.ready import wait_until_serving

LAST_LINES = 12
_LINE_LIMIT = 1 << 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Log = Callable[[str, str], None]
"""Called with the name of a service, or `forerun` for the supervisor itself, and a line."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One service: how to start it, where it then answers, and whether the others can do without it."""

    name: str
    command: tuple[str, ...]
    address: str
    required: bool = True
    grace_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The bounds on waiting and on trying again, in seconds."""

    start_s: float = 600.0  # until a service serves; a large model takes minutes to load
    backoff_s: float = 0.5  # before the first restart; doubles each time
    backoff_max_s: float = 15.0
    restarts: int = 5  # in a row; a service that served for `steady_s` starts counting anew
    steady_s: float = 60.0
    kill_s: float = 5.0  # beyond the grace period, before a process that will not stop is killed


class Child:
    """One service's process, started again and again; it forwards the process's lines and remembers the last."""

    def __init__(self, spec: Spec, log: Log) -> None:
        self.spec = spec
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._forwarding: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the process, in a process group of its own so that Ctrl-C reaches only us."""
        self.last_lines.clear()
        self._process = await asyncio.create_subprocess_exec(
            *guarded(list(self.spec.command)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_LINE_LIMIT,
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self._log("forerun", f"started {self.spec.name} pid={self._process.pid} address={self.spec.address}")
        self._forwarding = asyncio.create_task(self._forward(self._process))

    async def ended(self) -> int:
        """Waits for the process to end and for its last line; the exit code, negative for a signal."""
        assert self._process is not None and self._forwarding is not None
        code = await self._process.wait()
        await asyncio.shield(self._forwarding)
        return code

    def signal(self, number: int) -> None:
        """Sends a signal, if there is somebody to get it."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _forward(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                raw = await process.stdout.readline()
            except ValueError:  # a line beyond the limit; the reader has dropped it
                continue
            if not raw:
                return
            line = raw.decode(errors="replace").rstrip()
            self.last_lines.append(line)
            self._log(self.spec.name, line)


class Supervisor:
    """All services together. `run` is their whole life."""

    def __init__(self, specs: list[Spec], log: Log, pace: Pace) -> None:
        self.children = [Child(spec, log) for spec in specs]
        self._log = log
        self._pace = pace
        self._stop = asyncio.Event()
        self._killed = False

    async def run(self, on_ready: Callable[[], None], on_progress: Callable[[str], None]) -> int:
        """Starts, announces, watches and drains. The exit code; raises Failure if a start fails."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            if await self._unless_stopped(self._start_all(on_progress)):
                on_ready()
                await self._unless_stopped(self._keep_all())
        finally:
            await self._drain()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        return INTERRUPTED if self._killed else 0

    def _on_signal(self, number: int) -> None:
        if not self._stop.is_set():
            self._log("forerun", f"{signal.Signals(number).name}: draining, gateway first; a second one kills")
            self._stop.set()
            return
        self._killed = True
        for child in self.children:
            child.signal(signal.SIGKILL)

    async def _unless_stopped(self, work: asyncio.Task[None]) -> bool:
        """Runs `work` until it ends or a stop is asked for; whether it ended by itself."""
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()  # raises what it raised
                return True
            return False
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)

    def _start_all(self, on_progress: Callable[[str], None]) -> asyncio.Task[None]:
        waiting = {child.spec.name for child in self.children}

        async def start(child: Child) -> None:
            await child.start()
            await self._until_serving(child)
            waiting.discard(child.spec.name)
            on_progress(", ".join(sorted(waiting)))

        async def start_all() -> None:
            on_progress(", ".join(sorted(waiting)))
            # The first uses the others: started last, it finds them at once and logs no failed attempts.
            await _all([start(child) for child in self.children[1:]])
            await start(self.children[0])

        return asyncio.create_task(start_all())

    def _keep_all(self) -> asyncio.Task[None]:
        return asyncio.create_task(_all([self._keep(child) for child in self.children]))

    async def _until_serving(self, child: Child) -> None:
        """Returns when the child serves. Raises Failure if it ends before that or takes too long."""
        serving = asyncio.create_task(wait_until_serving(child.spec.address))
        ended = asyncio.create_task(child.ended())
        try:
            await asyncio.wait({serving, ended}, timeout=self._pace.start_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise Failure(_epitaph(child, f"{_how(ended.result())} before it was ready"))
            if not serving.done():
                raise Failure(_epitaph(child, f"was not ready after {self._pace.start_s:g} s"))
        finally:
            for task in (serving, ended):
                task.cancel()
            await asyncio.gather(serving, ended, return_exceptions=True)

    async def _keep(self, child: Child) -> None:
        """Restarts a service whenever it ends. Gives up after a bounded number of times in a row."""
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            since = loop.time()
            code = await child.ended()
            failures = 1 if loop.time() - since >= self._pace.steady_s else failures + 1
            if failures > self._pace.restarts:
                break
            pause = min(self._pace.backoff_max_s, self._pace.backoff_s * 2 ** (failures - 1))
            self._log("forerun", f"{child.spec.name} {_how(code)}; restart {failures} in {pause:g} s")
            await asyncio.sleep(pause)
            await child.start()
            with suppress(Failure):  # it ended again, which the next turn sees, or it takes long, which is its right
                await self._until_serving(child)
                self._log("forerun", f"{child.spec.name} is back")
        message = _epitaph(child, f"{_how(code)} and was restarted {self._pace.restarts} times in vain")
        if child.spec.required:
            raise Failure(message)
        self._log("forerun", f"{message}\ngoing on without it")

    async def _drain(self) -> None:
        """The first service alone, since it uses the others; then the rest together."""
        for group in (self.children[:1], self.children[1:]):
            for child in group:
                child.signal(signal.SIGTERM)
            await asyncio.gather(*(self._see_off(child) for child in group if child.running))

    async def _see_off(self, child: Child) -> None:
        try:
            await asyncio.wait_for(child.ended(), child.spec.grace_s + self._pace.kill_s)
        except TimeoutError:
            self._log("forerun", f"{child.spec.name} does not stop; killing it")
            child.signal(signal.SIGKILL)
            await child.ended()


async def _all(works: list[Coroutine[Any, Any, None]]) -> None:
    """Runs all until all end; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"stopped with exit code {code}"


def _epitaph(child: Child, what: str) -> str:
    lines = "".join(f"\n  {line}" for line in child.last_lines)
    return f"the {child.spec.name} {what}" + (f"; its last lines:{lines}" if lines else " and said nothing")
