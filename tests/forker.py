"""Starts service processes quickly: imports what they need once, then forks one for each line it reads.

A service started so runs `python -m MODULE` in every respect but one: torch is already imported, which is four of the
five seconds that a start takes. Lines in and out are JSON; the services die with this process, and this one with the
tests. Run as `python -m tests.forker`.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
from typing import Any

from transformers import AutoModelForCausalLM, LlamaForCausalLM

import draft_service.assembly
import gateway.service
import target_service.assembly
from forerun import telemetry

PRELOADED = (
    AutoModelForCausalLM,
    LlamaForCausalLM,
    draft_service.assembly,
    gateway.service,
    target_service.assembly,
    telemetry,
)
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answers `{"module", "arguments", "log"}` with a process id and `{"exited": pid}` with an exit code, or null."""
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        print(json.dumps(exit_code(order["exited"]) if "exited" in order else start(order)), flush=True)


def exit_code(pid: int) -> int | None:
    """A child's exit code, negative for a signal; None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def start(order: dict[str, Any]) -> int:
    """Forks, and becomes the service in the child."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = become(order, parent)
    finally:
        sys.stderr.flush()
        os._exit(code)


def become(order: dict[str, Any], parent: int) -> int:
    """What `python -m module arguments` does; returns its exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return 1
    os.setpgid(0, 0)  # the terminal's Ctrl-C is the tests' business
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, number)
    sys.argv = [order["module"], *order["arguments"]]
    try:
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


if __name__ == "__main__":
    main()
