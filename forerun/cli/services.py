"""`forerun pull`, `target`, `draft` and `gateway`: each hands over to a module that does the work in its own process.

The command line itself loads no model code, so these start fast and show all settings without it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from forerun import config
from forerun.cli.failure import Failure
from forerun.errors import NotFound
from forerun.model_folder import model_folder

_ABOUT = {
    "target": "Runs the target service: the large model, which verifies candidates and writes every token.",
    "draft": "Runs the draft service: the small model (or an n-gram lookup) that proposes candidates.",
    "gateway": "Runs the gateway: what clients talk to. It needs no GPU and no torch.",
}
_EPILOG = """\
Every setting can also come from a variable (FORERUN_{upper}_MODEL for this service, FORERUN_MODEL for any) or from the
table [{name}] of a settings file; `forerun config {name}` shows what is in force.
Spans go where OTEL_EXPORTER_OTLP_ENDPOINT says [nowhere].
example: forerun {name} {example}
"""
_EXAMPLES = {
    "target": "--model smollm2-135m --port 50061 --device cuda:0",
    "draft": "--model ngram --target smollm2-135m --port 50062",
    "gateway": "--targets 10.0.0.1:50061,10.0.0.2:50061 --drafts 10.0.0.3:50062",
}


def add_parsers(commands: Any) -> None:
    """Adds the four subcommands."""
    pull = commands.add_parser(
        "pull",
        help="fetch a model",
        description="Fetches a model into the cache, as a transformers folder, and prints the folder.",
        epilog="examples:\n  forerun pull smollm2-135m\n  forerun pull Qwen/Qwen3-0.6B  (with HF_TOKEN if gated)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pull.add_argument("model", metavar="MODEL", help="smollm2-135m, owner/name on the Hugging Face hub, or a folder")
    config.add_flags(pull, config.CacheConfig)
    config.add_config_flag(pull)
    pull.set_defaults(run=run_pull)
    for name, kind in config.SERVICES.items():
        parser = commands.add_parser(
            name,
            help=f"run one {name} service",
            description=_ABOUT[name],
            epilog=_EPILOG.format(name=name, upper=name.upper(), example=_EXAMPLES[name]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        group = parser.add_argument_group("settings, with their [defaults]")
        config.add_flags(group, kind)
        config.add_flags(group, config.CacheConfig)
        config.add_config_flag(group)
        parser.set_defaults(run=run_service)


def service_command(name: str, settings: Any, cache: config.CacheConfig) -> list[str]:
    """The command that runs a service with exactly these settings."""
    module = "gateway" if name == "gateway" else f"{name}_service"
    return [sys.executable, "-m", module, *config.flags_for(settings), *config.flags_for(cache)]


def run_pull(arguments: argparse.Namespace) -> int:
    """Becomes the puller, which prints the model's folder."""
    cache = config.resolve(config.CacheConfig, vars(arguments))
    become([sys.executable, "-m", "forerun.runtime.pull", arguments.model, "--cache", str(cache.folder)])
    return 0


def run_service(arguments: argparse.Namespace) -> int:
    """Becomes the service, with the settings given; variables and defaults fill the rest."""
    flags = vars(arguments)
    settings: Any = config.resolve(config.SERVICES[arguments.command], flags, prefix=arguments.command)
    become(service_command(arguments.command, settings, config.resolve(config.CacheConfig, flags)))
    return 0


def become(command: list[str]) -> None:
    """Replaces this process."""
    os.execv(command[0], command)


def pulled(model: str, cache: config.CacheConfig) -> Path:
    """The model's folder, fetched if it is not there; progress goes to stderr."""
    try:
        return model_folder(model, cache.folder)
    except NotFound as error:
        raise Failure(error.message) from None
