"""`forerun chat`: a conversation in the terminal.

Lines are sent to the gateway with all that was said before; what begins with / is a command (`chat_commands`). Without
a terminal the lines of stdin are the questions, and the first failure or Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from forerun import config
from forerun.cli.asking import add_call_flags, add_sampling_flags, add_speculation_flags, options_of
from forerun.cli.chat_commands import COMMANDS, Quit, help_text, obey
from forerun.cli.client import explaining
from forerun.cli.conversation import Conversation
from forerun.cli.failure import Failure
from forerun.cli.talk import Talk
from forerun.client import Client
from forerun.v1 import gateway_pb2

_EPILOG = f"""\
examples:
  forerun chat
  forerun chat --system "Answer in one sentence." --temperature 0.7
  printf 'Name a river.\\nAnother one.\\n' | forerun chat --max-tokens 32

commands:
{help_text()}

Ctrl-C stops an answer, Ctrl-D leaves.
"""
_PROMPT, _CONTINUED = "> ", "… "


def add_parser(commands: Any) -> None:
    """Adds the subcommand and its flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "chat",
        help="talk with a running gateway",
        description="A conversation: each answer knows what was said before.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    add_call_flags(parser.add_argument_group("call"))
    add_sampling_flags(parser.add_argument_group("sampling"), max_tokens=512)
    speculation = parser.add_argument_group("speculation")
    add_speculation_flags(speculation)
    speculation.add_argument("--rounds", action="store_true", help="colour the tokens by origin")


def run(arguments: argparse.Namespace) -> int:
    """Talks until the lines end, or somebody leaves."""
    address = config.resolve(config.ClientConfig, vars(arguments)).address
    with Client(address) as client:
        talk = Talk(client, Conversation(arguments.system), options_of(arguments), arguments.timeout)
        with explaining(address):
            status = client.status()
        watched = sys.stdin.isatty()
        if watched:
            talk.note(greeting(address, status))
            _complete_commands()
        with suppress(Quit):
            for line in _typed() if watched else _piped():
                _take(talk, line, watched)
    return 0


def _take(talk: Talk, line: str, watched: bool) -> None:
    """One line: a command or something said. Whoever watches is told of a failure, and it goes on."""
    try:
        if line.startswith("/") and not line.startswith("//"):
            obey(talk, line)
        elif line:
            talk.ask(line[1:] if line.startswith("//") else line)
    except Failure as failure:
        if not watched:
            raise
        talk.complain(failure)
    except KeyboardInterrupt:
        if not watched:
            raise


def greeting(address: str, status: gateway_pb2.GetStatusResponse) -> str:
    """Who answers, and what can be done."""
    targets = {replica.info.model_id for replica in status.targets if replica.info.model_id}
    drafts = {replica.info.model_id for replica in status.drafts if replica.info.model_id}
    models = ", ".join(sorted(targets)) or "no target yet"
    draft = f", draft {', '.join(sorted(drafts))}, {status.draft_length} candidates a round" if drafts else ", no draft"
    return f"{models} on {address}{draft}. /help lists commands, Ctrl-D leaves."


def _typed() -> Iterator[str]:
    """What is typed until Ctrl-D. Ctrl-C drops the line."""
    parts: list[str] = []
    while True:
        try:
            part = input(_CONTINUED if parts else _PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n(Ctrl-D leaves)")
            parts.clear()
            continue
        parts.append(part.removesuffix("\\"))
        if not part.endswith("\\"):
            yield "\n".join(parts).strip()
            parts.clear()


def _piped() -> Iterator[str]:
    return (line.strip() for line in sys.stdin)


def _complete_commands() -> None:
    """Arrow keys bring back what was typed, and Tab completes commands, where Python has readline."""
    with suppress(ImportError):
        import readline

        def complete(text: str, state: int) -> str | None:
            found = [f"/{name}" for name in COMMANDS if f"/{name}".startswith(text)] if text.startswith("/") else []
            return found[state] if state < len(found) else None

        readline.set_completer_delims(" ")
        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")
