"""Runs a command that dies with the process that started it: `child.py PARENT_PID COMMAND...`.

On Linux the kernel then kills the command when its parent is gone, however it went, so that no service is left behind.
Elsewhere it only runs the command: there a parent killed by SIGKILL does leave its children. Run by path and with
nothing but the standard library, since it stands in front of every start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def guarded(command: list[str]) -> list[str]:
    """`command`, wrapped so that it dies with this process. Start it from the main thread, whose life counts."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    """Ties this process to its parent, then becomes the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
