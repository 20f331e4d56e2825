"""The `forerun` command: pull models, run the services, talk to a gateway.

Every subcommand lives in a module of its own and raises `Failure` for what goes wrong; here they become one line on
stderr and an exit code. Nothing under `forerun.cli` loads a model or imports a service.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from forerun import __version__
from forerun.cli import bench, chat, check_pair, generate, services, settings, up
from forerun.cli.failure import INTERRUPTED, USAGE, Failure
from forerun.config import ConfigError

_DESCRIPTION = """\
Speculative decoding as three gRPC services: a draft runs ahead, a target verifies, a gateway stands between.
The text is the target's own; only the speed is the draft's.
"""
_EPILOG = """\
start here:
  forerun up                                       run all three services (fetches the default model first)
  forerun generate "Why is the sky blue?" --rounds ask, in another terminal
`forerun COMMAND --help` shows a command's flags and examples.
"""
_BROKEN_PIPE = 141  # as a shell reports a process that SIGPIPE ended


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="forerun",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"forerun {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    up.add_parser(commands)
    generate.add_parser(commands)
    chat.add_parser(commands)
    bench.add_parser(commands)
    check_pair.add_parser(commands)
    services.add_parsers(commands)
    settings.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parsed = build_parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except Failure as failure:
        return _complain(parsed.command, str(failure), failure.exit_code)
    except ConfigError as error:
        return _complain(parsed.command, f"{error} (see `forerun {parsed.command} --help`)", USAGE)
    except KeyboardInterrupt:
        return _complain(parsed.command, "interrupted", INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has gone; nobody is left to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _complain(command: str, message: str, code: int) -> int:
    print(f"forerun {command}: {message}", file=sys.stderr)
    return code
