"""One TOML file configures a distillation; this module reads it and knows nothing of what the numbers do.

Each section is a frozen dataclass, each default is written once, and a misspelt key is an error.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class StudentConfig:
    layers: tuple[int, ...]  # of the target, copied in this order
    intermediate_size: int  # neurons kept in each MLP


@dataclass(frozen=True)
class SampleConfig:
    batch: int = 3072  # sequences sampled side by side
    length: int = 512  # tokens of an ordinary sequence
    long_length: int = 1024  # tokens of a sequence with a long passage in its prompt
    answer_room: int = 192  # tokens left for the answer after a passage
    passage_batches: int = 1
    chat_batches: int = 14
    context_batches: int = 4
    long_batches: int = 5  # these are of batch // 2 sequences
    seed: int = 1


@dataclass(frozen=True)
class TrainConfig:
    steps: int = 7000
    minutes: float = 0.0  # ends training, and the decay of the learning rate, before the steps do; 0 is no limit
    tokens_per_step: int = 49152
    learning_rate: float = 2e-3
    warmup: int = 200
    hard_weight: float = 0.3  # share of the loss that asks for the target's most likely token
    long_share: float = 0.25  # share of the steps on long sequences
    keep_states: bool = True  # the target reads each sample once; needs 2 bytes x hidden size a token on the device
    checkpoint_every: int = 4000
    seed: int = 2


@dataclass(frozen=True)
class EvaluateConfig:
    prompts: str = ""  # JSON lines with `turns` or `prompt`; never trained on
    limit: int = 384
    batch: int = 128
    new_tokens: int = 160
    draft_length: int = 4
    temperature: float = 0.8


@dataclass(frozen=True)
class Config:
    target: str  # anything `forerun.runtime.pull` accepts
    work: Path  # samples and checkpoints; may be deleted afterwards
    output: Path  # the finished draft model
    student: StudentConfig
    sample: SampleConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    base_model: str = ""  # the target's public name, for the model card
    head_tokens: int = 0  # size of the output head that is advised on a CPU; 0 advises none


_SECTIONS = {"student": StudentConfig, "sample": SampleConfig, "train": TrainConfig, "evaluate": EvaluateConfig}


def load(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Reads the file; an override is `section.key=value` or `key=value`, with the value in JSON or a bare word."""
    table = tomllib.loads(path.read_text())
    for override in overrides:
        name, _, value = override.partition("=")
        *section, key = name.split(".")
        (table.setdefault(section[0], {}) if section else table)[key] = _value(value)
    parts: dict[str, Any] = {name: _section(kind, table.pop(name, {})) for name, kind in _SECTIONS.items()}
    for name in ("work", "output"):
        table[name] = Path(table[name]).expanduser()
    _refuse_unknown(Config, table)
    return Config(**table, **parts)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _section(kind: Any, table: dict[str, Any]) -> Any:
    _refuse_unknown(kind, table)
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})


def _refuse_unknown(kind: Any, table: dict[str, Any]) -> None:
    known = {field.name for field in fields(kind)}
    if unknown := set(table) - known:
        raise ValueError(f"unknown settings {sorted(unknown)}; {kind.__name__} has {sorted(known)}")
