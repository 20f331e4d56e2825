"""`forerun bench`: measures drafters and draft lengths at several loads and says which to run.

Here are the flags; `forerun.cli.background` starts services, `forerun.bench` does the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from forerun import config
from forerun.bench import dataset, load, machine, progress, records, report, runner, terminal, variants
from forerun.bench.client import Sampling
from forerun.bench.gateway import Reachable
from forerun.cli import background
from forerun.cli.failure import FAILED, INTERRUPTED, USAGE, Failure
from forerun.errors import ForerunError, InvalidArgument, Unavailable

EPILOG = """\
examples:
  forerun bench                                             start services here; 20 minutes on 2 cores
  forerun bench --variants off,model:4 --concurrency 1 --max-tokens 48       a first look, in a minute or two
  forerun bench --address 127.0.0.1:50060 --variants off,draft:2,draft:4     a gateway that runs already
  forerun bench --rate 0.5,2 --requests 64                                   Poisson arrivals instead of a fixed number
  forerun bench --dataset prompts.jsonl --turns all --temperature 0.8        your own prompts
  forerun bench --report-from bench.json -o report.html                      the report again, from the JSON alone

A variant is off, or a drafter and its candidates a round: ngram:4, model:2, ngram+model:4, or a hub id or folder as
in Qwen/Qwen3-0.6B:4. Without a number the gateway chooses the length as it goes: model. Against a running gateway only
its own draft can be measured, as draft:K. Lines of a data set are objects with `turns` (a list) or `prompt`; ShareGPT's
JSON works as well. docs/benchmarking.md tells how to read the report. Settings of the services come
from their variables, as with `forerun up`.
exit codes: 0 done, 1 failed or some requests failed, 2 wrong usage, 130 interrupted (what was measured is kept)
"""
_UP_VARIANTS = "off,ngram:4,model:2,model:4,model:6,ngram+model:4"
_RUNNING_VARIANTS = "off,draft:2,draft:4,draft:6"


def add_parser(commands: Any) -> None:
    """Adds the subcommand and its flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure which draft to run, at which load",
        description="Sends the same prompts with and without speculation and reports which variant to run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    _add_what(parser.add_argument_group("what is measured"))
    _add_requests(parser.add_argument_group("requests"))
    _add_services(parser.add_argument_group("services"))
    _add_output(parser.add_argument_group("output"))


def _add_what(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--variants", metavar="A,B", help=f"[{_UP_VARIANTS}; running gateway: {_RUNNING_VARIANTS}]")
    group.add_argument("--concurrency", metavar="A,B", help="levels of requests at once [1,4,16 without --rate]")
    group.add_argument("--rate", default="", metavar="A,B", help="levels of Poisson arrivals, requests a second [none]")
    group.add_argument("--requests", type=int, default=0, metavar="N", help="a level; at least 4 for each at once [4]")
    group.add_argument("--passes", type=int, default=2, metavar="N", help="turns the variants take [%(default)s]")
    group.add_argument("--warmup", type=int, default=2, metavar="N", help="requests before it counts [%(default)s]")


def _add_requests(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dataset", type=Path, metavar="FILE", help="JSONL or ShareGPT JSON [48 built-in prompts]")
    group.add_argument("--turns", choices=("first", "all"), default="first", help="of each prompt [%(default)s]")
    group.add_argument("--max-tokens", type=int, default=128, metavar="N", help="output tokens at most [%(default)s]")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy [%(default)g]")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of order, arrivals, draws [%(default)s]")
    group.add_argument("--window", type=int, metavar="N", help="candidates outstanding, run-ahead too [gateway's]")
    group.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="of a request [%(default)g]")


def _add_services(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--up", action="store_true", help="start the services here, even if FORERUN_ADDRESS is set")
    group.add_argument("--address", metavar="HOST:PORT", help="a running gateway instead [none: start services]")
    group.add_argument("--pids", default="", metavar="A=N,B=N", help="processes whose memory to read [those started]")
    group.add_argument("--target", metavar="MODEL", help="as for `forerun up`")
    group.add_argument("--draft", metavar="MODEL", help="what `model` means in --variants; as for `forerun up`")
    for name in ("dtype", "device", "draft-device"):
        group.add_argument(f"--{name}", metavar="X", help="as for `forerun up`")
    config.add_flags(group, config.UpConfig)
    config.add_flags(group, config.CacheConfig)
    config.add_config_flag(group)


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-o", "--output", type=Path, default=Path("bench.html"), metavar="FILE", help="[%(default)s]")
    group.add_argument("--json", type=Path, default=Path("bench.json"), metavar="FILE", help="[%(default)s]")
    group.add_argument("--report-from", type=Path, metavar="FILE", help="only make the report, from a bench.json")


def run(arguments: argparse.Namespace) -> int:
    """Measures, or reads what was measured; writes the report."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    try:
        if arguments.report_from is not None:
            return _conclude(console, records.restore(arguments.report_from), arguments.output, None)
        return _measure(arguments, console)
    except InvalidArgument as error:
        raise Failure(f"{error.message}; see `forerun bench --help`", USAGE) from None
    except ForerunError as error:
        raise Failure(error.message) from None


def _measure(arguments: argparse.Namespace, console: Console) -> int:
    gateway = config.look_up(config.ClientConfig, vars(arguments))["address"]
    address: str = "" if arguments.up or not gateway.origin else gateway.value
    plan = plan_from(arguments, _RUNNING_VARIANTS if address else _UP_VARIANTS)
    measured = _empty_run(arguments, plan)
    errors = Console(stderr=True, highlight=False)
    expected = progress.expected_requests(plan, together=bool(address))
    try:
        if address:
            reachable = Reachable(address, parse_pids(arguments.pids))
            with progress.Screen(errors, expected) as screen:
                asyncio.run(runner.run_against(plan, reachable, measured, screen))
        else:
            launcher = background.Launcher(vars(arguments), list(variants.by_drafter(plan.variants)))
            errors.print(f"the services' logs are in {launcher.logs}", style="dim", soft_wrap=True)
            with progress.Screen(errors, expected) as screen:
                asyncio.run(runner.run(plan, launcher, measured, screen))
    except KeyboardInterrupt:
        if measured.passes:
            _conclude(console, measured, arguments.output, arguments.json)
        return INTERRUPTED
    if not measured.passes:
        raise Unavailable("nothing could be measured; the lines above say why")
    return _conclude(console, measured, arguments.output, arguments.json)


def plan_from(arguments: argparse.Namespace, default_variants: str) -> runner.Plan:
    """What the flags ask for. Raises InvalidArgument that names the flag."""
    for name, least in (("requests", 0), ("passes", 1), ("warmup", 0), ("max_tokens", 1)):
        if getattr(arguments, name) < least:
            raise InvalidArgument(name.replace("_", "-"), f"is {getattr(arguments, name)}, must be at least {least}")
    concurrency = arguments.concurrency
    wanted = variants.parse_variants(default_variants if arguments.variants is None else arguments.variants)
    too_long = next((one.name for one in wanted if (one.draft_length or 0) > (arguments.window or 1 << 30)), None)
    if too_long is not None:
        raise InvalidArgument("window", f"{arguments.window} is less than the draft length of {too_long}")
    return runner.Plan(
        prompts=dataset.built_in() if arguments.dataset is None else dataset.load(arguments.dataset),
        variants=wanted,
        loads=load.parse_loads(
            "" if concurrency is None and arguments.rate else concurrency or "1,4,16", arguments.rate
        ),
        sampling=Sampling(
            arguments.max_tokens, arguments.temperature, arguments.seed, arguments.window, arguments.timeout
        ),
        requests=arguments.requests,
        passes=arguments.passes,
        warmup=arguments.warmup,
        all_turns=arguments.turns == "all",
    )


def parse_pids(text: str) -> dict[str, int]:
    """Reads `gateway=12,target=13`, or `12,13`. Raises InvalidArgument."""
    pids = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.rpartition("=")
        if not number.isdecimal():
            raise InvalidArgument("pids", f"{part!r} is not NAME=NUMBER or a number")
        pids[name or f"process {number}"] = int(number)
    return pids


def _empty_run(arguments: argparse.Namespace, plan: runner.Plan) -> records.Run:
    settings: dict[str, Any] = {
        "prompts": str(arguments.dataset or dataset.BUILT_IN),
        "turns": arguments.turns,
        "variants": [variant.name for variant in plan.variants],
        "loads": [level.label for level in plan.loads],
        "requests_a_level": [level.requests(plan.requests) for level in plan.loads],
        "passes": plan.passes,
        "warmup": plan.warmup,
        "max_tokens": plan.sampling.max_tokens,
        "temperature": plan.sampling.temperature,
        "seed": plan.sampling.seed,
        "window": plan.sampling.window or "the gateway's",
    }
    return records.Run(
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=shlex.join(["forerun", *sys.argv[1:]]),
        settings=settings,
        machine=machine.describe(),
        versions=machine.versions(),
        variants=[variant.name for variant in plan.variants],
    )


def _conclude(console: Console, measured: records.Run, output: Path, json: Path | None) -> int:
    if json is not None:
        records.save(measured, json)
        measured = records.restore(json)  # the report is that of the file, to the last digit
    report.write(measured, output)
    terminal.show(console, measured)
    wrote = f"wrote {output}" + (f" and {json}" if json is not None else "")
    console.print(wrote, style="dim", soft_wrap=True)
    failed = any(request.error for done in measured.passes for request in done.requests)
    return FAILED if failed and json is not None else 0
