"""`forerun pull`, `target`, `draft` and `gateway`: each hands over to a module that does the work in its own process.

The command line itself loads no model code, so these start fast and show all settings without it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Any

from forerun import config
from forerun.cli.failure import Failure

_ABOUT = {
    "target": "Runs the target service: the large model, which verifies candidates and writes every token.",
    "draft": "Runs the draft service: the small model (or an n-gram lookup) that proposes candidates.",
    "gateway": "Runs the gateway: what clients talk to. It needs no GPU and no torch.",
}
_EPILOG = """\
Every setting can also come from a variable: FORERUN_{upper}_MODEL for this service, FORERUN_MODEL for any.
Models lie in FORERUN_CACHE [~/.cache/forerun]. Spans go where OTEL_EXPORTER_OTLP_ENDPOINT says [nowhere].
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
    pull.set_defaults(run=run_pull)
    for name, kind in config.SERVICES.items():
        parser = commands.add_parser(
            name,
            help=f"run one {name} service",
            description=_ABOUT[name],
            epilog=_EPILOG.format(name=name, upper=name.upper(), example=_EXAMPLES[name]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        config.add_flags(parser.add_argument_group("settings, with their [defaults]"), kind)
        parser.set_defaults(run=run_service)


def service_command(name: str, settings: Any) -> list[str]:
    """The command that runs a service with exactly these settings."""
    module = "gateway" if name == "gateway" else f"{name}_service"
    return [sys.executable, "-m", module, *config.flags_for(settings)]


def run_pull(arguments: argparse.Namespace) -> int:
    """Prints the model's folder."""
    print(pull(arguments.model, config.resolve(config.CacheConfig, vars(arguments))))
    return 0


def pull(model: str, cache: config.CacheConfig) -> str:
    """The model's folder, fetched if it is not there; progress goes to stderr."""
    command = [sys.executable, "-m", "forerun.runtime.pull", model, "--cache", str(cache.folder)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise Failure(f"{model} cannot be used; what is wrong is said above")
    return lines[-1]


def run_service(arguments: argparse.Namespace) -> int:
    """Becomes the service, with the settings given; its own defaults and variables fill the rest."""
    kind = config.SERVICES[arguments.command]
    resolved: Any = config.resolve(kind, vars(arguments), prefix=arguments.command)
    command = service_command(arguments.command, resolved)
    os.execv(command[0], command)
