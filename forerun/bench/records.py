"""What one run measured: the content of `bench.json`, and nothing that can be computed from it.

Times of a request are seconds since it was sent; `started_s` is since the run began. Derived figures are methods.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from forerun.bench.load import Load
from forerun.errors import InvalidArgument

FORMAT = "forerun-bench/1"


@dataclass(slots=True)
class Round:
    """One round of a request's timeline."""

    draft_texts: list[str]
    committed_texts: list[str]
    accepted: int
    round_ms: float
    step_ms: float
    wait_ms: float
    draft_ms: float
    batch_size: int


@dataclass(slots=True)
class Speculation:
    """What speculation did in one request, summed over its rounds."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    committed: int = 0
    round_ms: float = 0.0
    step_ms: float = 0.0
    wait_ms: float = 0.0
    draft_ms: float = 0.0


@dataclass(slots=True)
class Request:
    """One turn of one prompt, as its client saw it."""

    prompt: int
    turn: int
    category: str
    started_s: float
    latency_s: float = 0.0
    error: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    chunks: list[tuple[float, int]] = field(default_factory=list)  # when, and how many tokens
    speculation: Speculation = field(default_factory=Speculation)
    timeline: list[Round] = field(default_factory=list)  # of one request a variant

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return self.chunks[0][0] if self.chunks else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: from the first chunk to the last over all tokens but one."""
        return (self.chunks[-1][0] - self.chunks[0][0]) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps_s(self) -> list[float]:
        """Times between chunks: what a reader sees as stutter."""
        return [later[0] - earlier[0] for earlier, later in pairwise(self.chunks)]

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latency: one value a token, the gap before a chunk spread evenly over the chunk's tokens."""
        return [gap / count for gap, (_, count) in zip(self.gaps_s, self.chunks[1:], strict=True) for _ in range(count)]


@dataclass(slots=True)
class Gpu:
    """One GPU during a pass."""

    name: str
    used_mib: int
    utilisation: float  # share of the time, 0..1


@dataclass(slots=True)
class Pass:
    """One stretch of requests of one variant at one load. A variant's passes alternate with the others'."""

    drafter: str
    variant: str
    load: Load
    index: int
    wall_s: float
    requests: list[Request]
    pss_bytes: dict[str, int] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)  # how the services' counters grew


@dataclass(slots=True)
class Deployment:
    """The services that a drafter's variants were measured on. With a `failure`, they were not."""

    drafter: str
    draft: str = ""
    target: str = ""
    dtype: str = ""
    device: str = ""
    failure: str = ""


@dataclass(slots=True)
class Run:
    """Everything."""

    created: str
    command: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    variants: list[str]
    complete: bool = False
    deployments: list[Deployment] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    format: str = FORMAT


def save(run: Run, path: Path) -> None:
    """Writes the run as JSON."""
    path.write_text(json.dumps(_rounded(dataclasses.asdict(run)), ensure_ascii=False) + "\n", encoding="utf-8")


def restore(path: Path) -> Run:
    """Reads a run. Raises InvalidArgument if the file is not one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument("report-from", f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidArgument("report-from", f"{path} is not a bench.json of the format {FORMAT}")
    try:
        return _build(Run, document)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument("report-from", f"{path} is damaged: {error!r}") from None


T = TypeVar("T")


def _build(kind: type[T], value: dict[str, Any]) -> T:
    hints = typing.get_type_hints(kind)
    return kind(**{name: _convert(hints[name], item) for name, item in value.items()})


def _convert(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value)
    if isinstance(hint, types.GenericAlias) and hint.__origin__ is list:
        return [_convert(hint.__args__[0], item) for item in value]
    if isinstance(hint, types.GenericAlias) and hint.__origin__ is tuple:
        return tuple(value)
    return value


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
