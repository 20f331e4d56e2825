"""Every setting of the three services: one frozen dataclass each, one place for each default.

A value comes from a command-line flag, else from a `FORERUN_*` variable, else from a settings file that was named, else
from the default written here. A variable may name its service (`FORERUN_TARGET_DEVICE`) or not (`FORERUN_DEVICE`, for
all that have the setting). Nothing changes a config after start-up; what follows from one is a property. A value or a
name that no service knows stops the start with ConfigError: a setting that is silently ignored costs more than that.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from forerun import settings_file
from forerun.setting import ConfigError as ConfigError
from forerun.setting import check, default_of, from_text, from_toml, setting

PROTOCOL_VERSION = 1
MAX_DRAFT_LENGTH = 64
SWITCH = ("on", "off")  # choices of a setting whose flag alone means on
MAX_WINDOW = 1024
MAX_EPOCH = 1 << 62  # far beyond use, and room on the wire for those that count on from it
MAX_ROUND_INDEX = 1 << 31


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Where pulled models lie."""

    cache: str = setting("~/.cache/forerun", "folder of pulled models")

    @property
    def folder(self) -> Path:
        return Path(self.cache).expanduser()


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Whom the command line talks to."""

    address: str = setting("127.0.0.1:50060", "the gateway, host:port")


@dataclass(frozen=True, slots=True)
class UpConfig:
    """How `forerun up` starts the three services on one machine."""

    threads: int = setting(0, "CPU threads to share out to target and draft; 0 takes all cores", low=0)
    start_timeout: float = setting(600.0, "seconds after which services that are not ready are given up", low=0)


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """The target service."""

    model: str = setting("smollm2-135m", "model name, hub id or folder")
    host: str = setting("127.0.0.1", "interface to listen on")
    port: int = setting(50061, "port to listen on; 0 takes a free one", low=0, high=65535)
    metrics_port: int = setting(
        -1, "port of the page for Prometheus, /metrics; 0 takes a free one, -1 has none", low=-1, high=65535
    )
    dtype: str = setting("auto", "number format", choices=("auto", "float32", "bfloat16", "float16"))
    device: str = setting("auto", "cpu, cuda, cuda:1; auto takes a GPU if there is one")
    eager: str = setting(
        "off", "on: on a GPU no compiled layers and no captured steps, for a quick start", choices=SWITCH
    )
    threads: int = setting(0, "CPU threads of the model; 0 takes all cores", low=0)
    max_sessions: int = setting(64, "sessions open at once, over all gateways", low=1)
    kv_cache_tokens: int = setting(0, "tokens the KV cache holds; 0 chooses by device", low=0)
    memory_share: float = setting(0.85, "of the GPU memory that the model leaves free, for the KV cache", low=0, high=1)
    block_size: int = setting(16, "tokens in a KV-cache block", low=1)
    prefix_reuse: str = setting(
        "auto",
        "sequences that begin alike share what is computed; auto: on a GPU, not on a CPU",
        choices=("auto", "on", "off"),
    )
    max_batch_tokens: int = setting(512, "tokens in one step; longer prompts are prefilled in chunks", low=16)
    deterministic: str = setting(
        "off",
        "on: on a GPU every step is computed in one shape, so that text never depends on its company; slower",
        choices=SWITCH,
    )
    max_patience_ms: float = setting(1000.0, "the longest wait for candidates; 0 never waits", low=0)
    grace_s: float = setting(10.0, "seconds that open streams may go on after a stop signal", low=0)


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """The draft service."""

    model: str = setting(
        "ngram+smollm2-135m-draft", "draft model name, hub id or folder; ngram, which needs no weights; or ngram+MODEL"
    )
    target: str = setting("smollm2-135m", "the target's model, for embeddings that the draft shares with it")
    host: str = setting("127.0.0.1", "interface to listen on")
    port: int = setting(50062, "port to listen on; 0 takes a free one", low=0, high=65535)
    metrics_port: int = setting(
        -1, "port of the page for Prometheus, /metrics; 0 takes a free one, -1 has none", low=-1, high=65535
    )
    dtype: str = setting("auto", "number format", choices=("auto", "float32", "bfloat16", "float16"))
    device: str = setting("auto", "cpu, cuda, cuda:1; auto takes a GPU if there is one")
    eager: str = setting(
        "off", "on: on a GPU no compiled layers and no captured steps, for a quick start", choices=SWITCH
    )
    threads: int = setting(0, "CPU threads of the model; 0 takes all cores", low=0)
    max_sessions: int = setting(64, "sessions open at once, over all gateways", low=1)
    kv_cache_tokens: int = setting(0, "tokens the KV cache holds; 0 chooses by device", low=0)
    memory_share: float = setting(0.85, "of the GPU memory that the model leaves free, for the KV cache", low=0, high=1)
    block_size: int = setting(16, "tokens in a KV-cache block", low=1)
    prefix_reuse: str = setting(
        "auto",
        "sequences that begin alike share what is computed; auto: on a GPU, not on a CPU",
        choices=("auto", "on", "off"),
    )
    max_batch_tokens: int = setting(512, "tokens in one step; longer prompts are prefilled in chunks", low=16)
    ngram_min: int = setting(2, "shortest match that the ngram drafter takes", low=1)
    ngram_max: int = setting(4, "longest match that the ngram drafter looks for", low=1)
    ngram_first_min: int = setting(4, "shortest match that ngram+MODEL takes before it asks the model", low=1)
    vocabulary: int = setting(
        0, "most frequent tokens that the draft model may propose; 0 is what its checkpoint recommends, or all", low=0
    )
    weights: str = setting(
        "auto",
        "auto: eight bits for few rows where that is faster, on a CPU in bfloat16; whole: as in the checkpoint",
        choices=("auto", "whole"),
    )
    min_confidence: float = setting(
        -1.0,
        "a draft ends where the chance that all of it holds falls below this; 0 never, -1 chooses: 0.5, or 0 on a GPU",
        low=-1,
        high=1,
    )
    grace_s: float = setting(10.0, "seconds that open streams may go on after a stop signal", low=0)

    def __post_init__(self) -> None:
        if self.ngram_max < self.ngram_min:
            raise ConfigError(f"ngram_max: {self.ngram_max} is less than ngram_min ({self.ngram_min})")


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The gateway."""

    model: str = setting("smollm2-135m", "the target's model, for its tokenizer and chat template")
    host: str = setting("127.0.0.1", "interface to listen on")
    port: int = setting(50060, "port to listen on; 0 takes a free one", low=0, high=65535)
    metrics_port: int = setting(
        -1, "port of the page for Prometheus, /metrics; 0 takes a free one, -1 has none", low=-1, high=65535
    )
    targets: tuple[str, ...] = setting(["127.0.0.1:50061"], "target services, host:port, comma separated")
    drafts: tuple[str, ...] = setting(["127.0.0.1:50062"], "draft services, host:port, comma separated; may be empty")
    gateway_id: str = setting("", "this gateway's name to the services; empty draws a random one")
    draft_length: int = setting(6, "candidates a round at most", low=1, high=MAX_DRAFT_LENGTH)
    adaptive: str = setting(
        "on",
        "on: the gateway measures and lowers the draft length, to nothing where that is faster",
        choices=SWITCH,
    )
    draft_length_by_batch: str = setting("", "draft length by running sessions instead of measuring, as 1:4,4:2,9:0")
    disable_above: int = setting(0, "no speculation while more than so many sessions run; 0 is no such limit", low=0)
    window: int = setting(
        0, "candidates outstanding, run-ahead included; 0 means draft_length: no run-ahead", low=0, high=MAX_WINDOW
    )
    max_requests: int = setting(64, "requests being generated at once", low=1)
    max_queue: int = setting(256, "requests waiting for their turn; more are refused", low=0)
    credit_tokens: int = setting(256, "tokens the target may commit ahead of a client that does not read", low=1)
    target_wait_s: float = setting(30.0, "how long a request waits for a target before UNAVAILABLE", low=0)
    verdict_timeout_s: float = setting(60.0, "a target silent for so long is asked again; doubles each time", low=0.1)
    draft_timeout_s: float = setting(5.0, "a draft silent for so long while candidates are due is broken", low=0.1)
    reconnect_min_s: float = setting(0.2, "first pause before trying a lost service again", low=0.01)
    reconnect_max_s: float = setting(5.0, "longest pause before trying a lost service again", low=0.01)
    grace_s: float = setting(10.0, "seconds that open requests may go on after a stop signal", low=0)

    def __post_init__(self) -> None:
        if 0 < self.window < self.draft_length:
            raise ConfigError(f"window: {self.window} is less than draft_length ({self.draft_length}); 0 equals it")
        if self.reconnect_max_s < self.reconnect_min_s:
            raise ConfigError(f"reconnect_max_s: {self.reconnect_max_s:g} is less than reconnect_min_s")


SERVICES: Mapping[str, type[Any]] = {"target": TargetConfig, "draft": DraftConfig, "gateway": GatewayConfig}

# The tables of a settings file, the nameless one for what stands above them.
TABLES: Mapping[str, tuple[type[Any], ...]] = {
    settings_file.NO_TABLE: (CacheConfig, ClientConfig),
    **{name: (kind,) for name, kind in SERVICES.items()},
    "up": (UpConfig,),
}

# `forerun.logs` reads the first two itself.
_OTHER_VARIABLES = {"FORERUN_LOG_FORMAT", "FORERUN_LOG_LEVEL", settings_file.VARIABLE}

ConfigT = TypeVar("ConfigT", CacheConfig, ClientConfig, UpConfig, TargetConfig, DraftConfig, GatewayConfig)


class Found(NamedTuple):
    """A setting's value, and where it came from: a flag, a variable, a place in a file, or nothing if by default."""

    value: Any
    origin: str


def add_config_flag(parser: argparse._ActionsContainer) -> None:
    """Adds the flag that names the settings file."""
    help = f"settings file, TOML; see `forerun config` [{settings_file.VARIABLE}, else none]"
    parser.add_argument("--config", metavar="FILE", help=help)


def add_flags(parser: argparse._ActionsContainer, config: type[Any]) -> None:
    """Adds a flag for every setting of `config`; its default is left to `resolve`."""
    hints = typing.get_type_hints(config)
    for item in dataclasses.fields(config):
        default = default_of(item)
        shown = ",".join(default) if isinstance(default, tuple) else default
        switch: dict[str, Any] = {"nargs": "?", "const": "on"} if item.metadata["choices"] == SWITCH else {}
        parser.add_argument(
            f"--{item.name.replace('_', '-')}",
            **switch,
            default=None,
            metavar=_metavar(hints[item.name], item),
            help=f"{item.metadata['help']} [{shown if shown != '' else 'none'}]".replace("%", "%%"),
        )


def resolve(
    config: type[ConfigT], flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, prefix: str = ""
) -> ConfigT:
    """Flag over variable over file over default, checked. `prefix`: FORERUN_TARGET_PORT goes before FORERUN_PORT.

    Raises ConfigError naming the setting and where its value came from.
    """
    return config(**{name: found.value for name, found in look_up(config, flags, environment, prefix).items()})


def look_up(
    config: type[Any], flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, prefix: str = ""
) -> dict[str, Found]:
    """Every setting of `config` by name: what `resolve` puts together, and where it is from."""
    environment = os.environ if environment is None else environment
    _refuse_unknown(environment)
    file = settings_file.load(flags, environment, {table: _names(kinds) for table, kinds in TABLES.items()})
    (table,) = (name for name, kinds in TABLES.items() if config in kinds)
    hints = typing.get_type_hints(config)
    found = {}
    for item in dataclasses.fields(config):
        text, origin = _text(item.name, flags, environment, prefix)
        if text is not None:
            found[item.name] = Found(from_text(text, hints[item.name], origin), origin)
        elif item.name in file.tables.get(table, {}):
            origin = file.origin(table, item.name)
            found[item.name] = Found(from_toml(file.tables[table][item.name], hints[item.name], origin), origin)
        else:
            found[item.name] = Found(default_of(item), "")
        check(found[item.name].value, item, origin)
    return found


def variable(name: str, prefix: str = "") -> str:
    """The environment variable of a setting."""
    return "_".join(part for part in ("FORERUN", prefix.upper(), name.upper()) if part)


def flags_for(config: Any) -> list[str]:
    """The command line that gives a child process this config."""
    arguments: list[str] = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        arguments += [f"--{item.name.replace('_', '-')}", text]
    return arguments


def _metavar(kind: Any, item: dataclasses.Field[Any]) -> str:
    if item.metadata["choices"]:
        return "{" + ",".join(item.metadata["choices"]) + "}"
    return {int: "N", float: "X", str: "TEXT"}.get(kind, "A,B")


def _names(kinds: tuple[type[Any], ...]) -> set[str]:
    return {item.name for kind in kinds for item in dataclasses.fields(kind)}


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    names = set().union(*map(_names, TABLES.values()))
    known = {variable(name, prefix) for name in names for prefix in ("", *SERVICES, "up")} | _OTHER_VARIABLES
    for key in environment:
        if key.startswith("FORERUN_") and key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else "; unset it"
            raise ConfigError(f"{key}: no setting has this variable{hint}")


def _text(name: str, flags: Mapping[str, Any], environment: Mapping[str, str], prefix: str) -> tuple[str | None, str]:
    """What a flag or a variable says, and which."""
    if flags.get(name) is not None:
        return str(flags[name]), f"--{name.replace('_', '-')}"
    for key in (variable(name, prefix), variable(name)) if prefix else (variable(name),):
        if key in environment:
            return environment[key], key
    return None, name
