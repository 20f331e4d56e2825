"""`forerun up`: the three services as local processes, one log, one Ctrl-C.

It plans (`plan`), pulls what is missing, and hands the processes to a `Supervisor`; here is what people see of it.
The services' lines go to stderr, each with its service's name in its colour; `ready: ...` goes to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from forerun import config
from forerun.cli.plan import EMBEDDED_DRAFT, Plan, address, cores, make_plan
from forerun.cli.services import pulled
from forerun.cli.supervisor import Pace, Supervisor
from forerun.logs import COLOURS

EPILOG = """\
examples:
  forerun up                                          the embedded pair on ports 50060, 50061, 50062
  forerun up --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --device cuda:0 --draft-device cuda:1 --window 8
  forerun up --draft ngram                            no draft model: candidates from the text so far
  forerun up --draft none                             plain decoding
  forerun up --port 0 --target-port 0 --draft-port 0  free ports

Every other setting of a service comes from its variable, for example FORERUN_TARGET_MAX_SESSIONS, or from its table in
the settings file (see `forerun config`). The first Ctrl-C lets open requests finish, the second kills. A service that
dies is restarted.
"""


def add_parser(commands: Any) -> None:
    """Adds the subcommand and its flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "up",
        help="run all three services on this machine",
        description="Starts target, draft and gateway as local processes and keeps them until Ctrl-C.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    models = parser.add_argument_group("models")
    models.add_argument("--target", metavar="MODEL", help=f"hub id, folder or name [{config.TargetConfig().model}]")
    models.add_argument(
        "--draft", metavar="MODEL", help=f"the same, or ngram or none [{EMBEDDED_DRAFT}; ngram for other targets]"
    )
    models.add_argument("--dtype", metavar="TYPE", help="auto, float32, bfloat16 or float16 [auto]")
    models.add_argument("--device", help="cpu, cuda, cuda:1; auto takes a GPU if there is one [auto]")
    models.add_argument("--draft-device", metavar="DEVICE", help="the draft's, if it has its own [--device]")
    config.add_flags(models, config.CacheConfig)
    speculation = parser.add_argument_group("speculation")
    speculation.add_argument("--draft-length", metavar="N", help=f"candidates a round [{_GATEWAY.draft_length}]")
    speculation.add_argument(
        "--window", metavar="N", help="candidates outstanding; beyond --draft-length it runs ahead"
    )
    network = parser.add_argument_group("network")
    network.add_argument("--host", help=f"interface the gateway listens on [{_GATEWAY.host}]")
    network.add_argument("--port", metavar="N", help=f"the gateway's port; 0 takes a free one [{_GATEWAY.port}]")
    network.add_argument("--target-port", metavar="N", help=f"the target's [{config.TargetConfig().port}]")
    network.add_argument("--draft-port", metavar="N", help=f"the draft's [{config.DraftConfig().port}]")
    start = parser.add_argument_group("start")
    config.add_flags(start, config.UpConfig)
    config.add_config_flag(start)


_GATEWAY = config.GatewayConfig()
_LOG_LINE = re.compile(r"(?P<time>\d{4}-\S+Z) (?P<level>[A-Z]+) +(?P<service>\w+) +(?P<event>.*)")


def run(arguments: argparse.Namespace) -> int:
    """Runs the services until a signal; 0 after a clean stop."""
    plan = make_plan(vars(arguments), os.environ, cores())
    for model in plan.models:
        pulled(model, plan.cache)
    return asyncio.run(_serve(plan, Screen(), Pace(start_s=plan.start_timeout_s)))


async def _serve(plan: Plan, screen: Screen, pace: Pace) -> int:
    screen.log("forerun", describe(plan))
    with screen.spinner:
        return await Supervisor(plan.specs, screen.log, pace).run(
            on_ready=lambda: screen.ready(address(plan.gateway)), on_progress=screen.progress
        )


def describe(plan: Plan) -> str:
    """The choices that were made, in one line."""
    draft = "none" if plan.draft is None else plan.draft.model
    choice = f"target {plan.target.model}, draft {draft}"
    if plan.draft is None:
        return f"{choice}; CPU threads: target {plan.target.threads}"
    turns = "both compute at once" if plan.gateway.window > plan.gateway.draft_length else "they take turns"
    return f"{choice}; CPU threads: target {plan.target.threads}, draft {plan.draft.threads} ({turns})"


class Screen:
    """The merged log, and a spinner under it while something starts."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self.spinner = Status("starting", console=self._console)

    def log(self, service: str, lines: str) -> None:
        """Prints lines under a service's name. Lines that are JSON stay as they are, for machines."""
        for line in lines.split("\n"):
            if line.startswith("{"):
                self._console.out(line, highlight=False)
                continue
            prefix = Text(f"{service:<7} │ ", style=COLOURS.get(service, "bold"))
            shown = _shown(service, line, short=self._console.is_terminal)
            self._console.print(prefix.append(shown, "default"), soft_wrap=True)

    def progress(self, waiting: str) -> None:
        """Shows what is still awaited."""
        self.spinner.update(f"waiting for {waiting}" if waiting else "ready")

    def ready(self, gateway: str) -> None:
        """Says that requests are welcome, and how to send one."""
        self.spinner.stop()
        option = "" if gateway == "127.0.0.1:50060" else f" --address {gateway}"
        Console(highlight=False).print(f"[bold green]ready:[/] gateway on {gateway}", soft_wrap=True)
        self.log("forerun", f'try: forerun generate "Why is the sky blue?" --rounds{option}')


def _shown(service: str, line: str, short: bool) -> str:
    """A log line `time level service event...` without the service, which stands in front of it already.

    For people at a terminal, `short` gives the local time of day, and the level only if there is something to worry.
    """
    match = _LOG_LINE.fullmatch(line)
    if match is None or match["service"] != service:
        return line
    time, level, event = match["time"], match["level"], match["event"]
    if not short:
        return f"{time} {level:<7} {event}"
    local = datetime.fromisoformat(time).astimezone().strftime("%H:%M:%S")
    return f"{local} {event}" if level == "INFO" else f"{local} {level} {event}"
