"""How a command fails: one line that says what is wrong and what to do next, and an exit code.

0 means done, 1 failed, 2 wrong usage or a refused request, 130 interrupted.
"""

from __future__ import annotations

FAILED = 1
USAGE = 2
INTERRUPTED = 130


class Failure(Exception):
    """Ends the command; `forerun.cli.main` prints it without a traceback."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
