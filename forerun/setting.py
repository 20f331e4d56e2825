"""One setting: its default, its help text, its bounds, and how a value for it is read and checked.

`forerun.config` is made of these. A value comes as text (a flag, a variable) or typed (a TOML file); either way it ends
as the type that the field declares, or as a ConfigError that begins with where the value came from.
"""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any


class ConfigError(ValueError):
    """A setting is unknown, malformed or out of range; the message names it."""


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field with the text that `--help` shows and the bounds that are checked at start-up."""
    metadata = {"help": help, "low": low, "high": high, "choices": choices}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: tuple(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def default_of(item: dataclasses.Field[Any]) -> Any:
    """The value that holds if nothing else is said."""
    if item.default is not dataclasses.MISSING:
        return item.default
    assert item.default_factory is not dataclasses.MISSING
    return item.default_factory()


def from_text(text: str, kind: Any, origin: str) -> Any:
    """The value that a flag or a variable spells."""
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{origin}: {text!r} is not {wanted}") from None
    if isinstance(kind, types.GenericAlias):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def from_toml(value: Any, kind: Any, origin: str) -> Any:
    """The value that a file holds, which must be of the setting's own type; a whole number is a number too."""
    plain = type(value)  # not isinstance: true is an int to Python, but not to us
    if isinstance(kind, types.GenericAlias):
        if plain is list and all(type(part) is str for part in value):
            return tuple(value)
        raise ConfigError(f"{origin}: {_shown(value)} is not a list of strings")
    if plain is kind or (kind is float and plain is int):
        return kind(value)
    wanted = {int: "a whole number", float: "a number", str: "a string"}[kind]
    raise ConfigError(f"{origin}: {_shown(value)} is not {wanted}")


def _shown(value: Any) -> str:
    """A wrong value as its writer knows it, cut short."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def check(value: Any, item: dataclasses.Field[Any], origin: str) -> None:
    """Raises ConfigError if a value is outside the setting's bounds."""
    low, high, choices = (item.metadata[key] for key in ("low", "high", "choices"))
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{origin}: {value} is not a finite number")
    if low is not None and not value >= low:
        raise ConfigError(f"{origin}: {value} is too small, at least {low:g}")
    if high is not None and value > high:
        raise ConfigError(f"{origin}: {value} is too large, at most {high:g}")
    if choices is not None and value not in choices:
        raise ConfigError(f"{origin}: {value!r} is not one of {', '.join(choices)}")
