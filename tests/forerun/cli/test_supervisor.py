"""Processes are started, watched, restarted and drained as promised, and none outlives its supervisor."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.cli.failure import Failure
from forerun.cli.supervisor import Pace, Spec, Supervisor

ROOT = Path(__file__).parents[3]
SERVICE = ROOT / "tests" / "fake_service.py"
QUICK = Pace(start_s=20, backoff_s=0.01, backoff_max_s=0.02, restarts=2, steady_s=60, kill_s=0.2)


def spec(name: str, mode: str = "well", required: bool = True, grace_s: float = 10.0) -> Spec:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = (sys.executable, str(SERVICE), name, str(port), mode)
    return Spec(name, command, f"127.0.0.1:{port}", required=required, grace_s=grace_s)


class Run:
    """One supervisor under test, its log, and what to do when lines appear in it."""

    def __init__(self, *specs: Spec, pace: Pace = QUICK) -> None:
        self.lines: list[str] = []
        self._reactions: list[tuple[re.Pattern[str], Callable[[re.Match[str]], None]]] = []
        self._specs, self._pace = list(specs), pace

    def when(self, pattern: str, react: Callable[[re.Match[str]], None]) -> Run:
        """Calls `react` once, for the first line that matches."""
        self._reactions.append((re.compile(pattern), react))
        return self

    def __call__(self) -> int:
        async def supervise() -> int:
            supervisor = Supervisor(self._specs, self._log, self._pace)
            return await supervisor.run(lambda: self._log("forerun", "ready"), lambda waiting: None)

        return asyncio.run(asyncio.wait_for(supervise(), 60))

    def position(self, line: str) -> int:
        return self.lines.index(line)

    def pid(self, name: str) -> int:
        """The latest process of a service."""
        found = [re.search(rf"started {name} pid=(\d+)", line) for line in self.lines]
        return int([match for match in found if match][-1].group(1))

    def _log(self, service: str, line: str) -> None:
        self.lines.append(f"{service}: {line}")
        for reaction in list(self._reactions):
            if match := reaction[0].search(self.lines[-1]):
                self._reactions.remove(reaction)
                asyncio.get_running_loop().call_soon(reaction[1], match)


def stop(_: object = None) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_ready_comes_when_all_serve_and_the_first_service_is_drained_first() -> None:
    run = Run(spec("gateway"), spec("target"), spec("draft")).when("forerun: ready", stop)
    assert run() == 0
    assert "forerun: SIGINT: draining, gateway first; a second one kills" in run.lines
    assert run.position("gateway: gateway drained") < run.position("target: target drained")
    assert run.position("gateway: gateway drained") < run.position("draft: draft drained")
    assert all(gone(run.pid(name)) for name in ("gateway", "target", "draft"))


def test_a_service_that_dies_at_start_is_shown_with_its_last_lines_and_the_others_stop() -> None:
    run = Run(spec("gateway"), spec("target", "dies"), spec("draft"))
    with pytest.raises(Failure) as failure:
        run()
    assert str(failure.value) == (
        "the target stopped with exit code 3 before it was ready; its last lines:\n"
        "  target begins\n  the model is missing"
    )
    assert gone(run.pid("draft"))
    assert not any("started gateway" in line for line in run.lines)


def test_a_service_that_never_becomes_ready_is_given_up() -> None:
    with pytest.raises(Failure, match=r"the target was not ready after 1 s"):
        Run(spec("target", "mute"), pace=replace(QUICK, start_s=1.0))()


@pytest.mark.parametrize("name", ["draft", "target"])
def test_a_service_that_is_killed_later_is_restarted(name: str) -> None:
    run = Run(spec("gateway"), spec("target"), spec("draft", required=False))
    run.when("forerun: ready", lambda _: os.kill(run.pid(name), signal.SIGKILL))
    run.when(f"forerun: {name} is back", stop)
    assert run() == 0
    assert f"forerun: {name} was ended by SIGKILL; restart 1 in 0.01 s" in run.lines
    assert run.lines.count(f"{name}: {name} begins") == 2


class Relapsing:
    """Kills a service each time it comes up."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.name = run, name
        run.when("forerun: ready", self)

    def __call__(self, _: object) -> None:
        os.kill(self.run.pid(self.name), signal.SIGKILL)
        self.run.when(f"forerun: {self.name} is back", self)


def test_a_draft_that_keeps_dying_is_given_up_and_the_rest_goes_on() -> None:
    run = Run(spec("gateway"), spec("target"), spec("draft", required=False)).when("going on without it", stop)
    Relapsing(run, "draft")
    assert run() == 0
    assert "target: target drained" in run.lines


def test_a_target_that_keeps_dying_ends_everything() -> None:
    run = Run(spec("gateway"), spec("target"))
    Relapsing(run, "target")
    with pytest.raises(Failure, match="was restarted 2 times in vain"):
        run()
    assert gone(run.pid("gateway"))


def test_a_second_signal_kills() -> None:
    run = Run(spec("gateway", "stubborn"), spec("target"), pace=replace(QUICK, kill_s=60))
    run.when("forerun: ready", stop).when("draining", stop)
    assert run() == 130
    assert gone(run.pid("gateway")) and gone(run.pid("target"))


def test_a_service_that_ignores_the_stop_is_killed_after_its_grace() -> None:
    run = Run(spec("gateway", "stubborn", grace_s=0.1)).when("forerun: ready", stop)
    assert run() == 0
    assert "forerun: gateway does not stop; killing it" in run.lines


PARENT = """
import asyncio, sys
from forerun.cli.supervisor import Pace, Spec, Supervisor
spec = Spec("target", tuple(sys.argv[2:]), sys.argv[1])
log = lambda service, line: print(line, flush=True)
asyncio.run(Supervisor([spec], log, Pace()).run(lambda: log("", "ready"), lambda waiting: None))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
def test_no_service_outlives_a_supervisor_that_was_killed() -> None:
    target = spec("target", "stubborn")
    command = [sys.executable, "-c", PARENT, target.address, *target.command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        lines = iter(parent.stdout.readline, "")
        pid = int(next(match for line in lines if (match := re.search(r"pid=(\d+)", line))).group(1))
        assert any("ready" in line for line in lines)
        process = os.pidfd_open(pid)
        parent.kill()
    assert select.select([process], [], [], 10)[0] == [process]  # readable once the process has ended
    os.close(process)
