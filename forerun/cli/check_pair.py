"""`forerun check-pair`: whether a draft suits a target, and how far ahead it should run.

Here are the flags; a process of its own loads both models and measures.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from typing import Any

from forerun import config
from forerun.cli.failure import USAGE, Failure
from forerun.cli.plan import EMBEDDED_DRAFT, cores, make_plan
from forerun.cli.services import become, pulled

MOST_PROMPTS = 12  # that are built in
LONGEST = 8  # candidates of the longest draft that is tried
EPILOG = """\
examples:
  forerun check-pair                                              the embedded pair, in half a minute
  forerun check-pair --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --device cuda:0
  forerun check-pair --draft ngram --temperature 0.8              the lookup alone, with sampling
  forerun check-pair --draft-vocabulary 8192 --json               a restricted draft; for programs

The target answers a few built-in prompts, and the draft is asked what it would have proposed after each token of the
answers. Steps of both are timed on this machine, so let it be as busy as it will be in use. What to expect holds for
one request at a time; `forerun bench` measures any load, and your own prompts.
exit codes: 0 measured, 1 the vocabularies differ or a model cannot be loaded, 2 wrong usage
"""
_FREE_PORTS = {"port": 0, "target_port": 0, "draft_port": 0}


def add_parser(commands: Any) -> None:
    """Adds the subcommand and its flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "check-pair",
        help="whether a draft suits a target",
        description="Compares the vocabularies, measures acceptance and step times, and says what to expect.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    models = parser.add_argument_group("models")
    models.add_argument("--target", metavar="MODEL", help="as for `forerun up`")
    models.add_argument("--draft", metavar="MODEL", help=f"the same, or ngram [{EMBEDDED_DRAFT}]")
    models.add_argument("--dtype", metavar="TYPE", help="auto, float32, bfloat16 or float16 [auto]")
    models.add_argument("--device", help="cpu, cuda, cuda:1; auto takes a GPU if there is one [auto]")
    models.add_argument("--draft-device", metavar="DEVICE", help="the draft's, if it has its own [--device]")
    models.add_argument(
        "--draft-vocabulary", type=int, metavar="N", help="most frequent tokens it may propose [its own advice]"
    )
    models.add_argument("--threads", metavar="N", help="CPU threads; 0 takes all cores [0]")
    config.add_flags(models, config.CacheConfig)
    config.add_config_flag(models)
    _add_measurement(parser.add_argument_group("measurement"))


def _add_measurement(group: argparse._ArgumentGroup) -> None:
    length = config.GatewayConfig().draft_length
    group.add_argument("--draft-length", type=int, default=length, metavar="N", help="shown by position [%(default)s]")
    group.add_argument("--prompts", type=int, default=MOST_PROMPTS, metavar="N", help="of those built in [%(default)s]")
    group.add_argument("--tokens", type=int, default=64, metavar="N", help="after each, at most [%(default)s]")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy [%(default)g]")
    group.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Fetches the models and becomes the process that measures."""
    become(command(arguments))
    return 0


def command(arguments: argparse.Namespace) -> list[str]:
    """What measures; the settings are those with which `forerun up` would start the pair."""
    for name, low, high in (("prompts", 1, MOST_PROMPTS), ("draft_length", 1, LONGEST), ("tokens", 16, 4096)):
        if not low <= getattr(arguments, name) <= high:
            flag = name.replace("_", "-")
            raise Failure(f"--{flag}: {getattr(arguments, name)} is not from {low} to {high}", USAGE)
    if arguments.temperature < 0:
        raise Failure(f"--temperature: {arguments.temperature:g} is less than 0", USAGE)
    flags = {name: value for name, value in vars(arguments).items() if name != "draft_length"}
    plan = make_plan({**flags, **_FREE_PORTS}, os.environ, cores())
    draft = plan.draft
    if draft is None:
        raise Failure("--draft none leaves nothing to check; name a draft model, or ngram", USAGE)
    for model in plan.models:
        pulled(model, plan.cache)
    if arguments.draft_vocabulary is not None:
        draft = replace(draft, vocabulary=arguments.draft_vocabulary)
    given: dict[str, Any] = {
        "target-dtype": plan.target.dtype,
        "target-device": plan.target.device,
        "target-threads": plan.target.threads,
        "draft-length": arguments.draft_length,
        "prompts": arguments.prompts,
        "tokens": arguments.tokens,
        "temperature": arguments.temperature,
    }
    settings = [*config.flags_for(draft), *config.flags_for(plan.cache)]
    options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    json = ["--json"] if arguments.json else []
    return [sys.executable, "-m", "draft_service.check_pair", *settings, *options, *json]
