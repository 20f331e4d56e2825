"""The settings file: TOML with a table for each service, `[target] port = 50061`.

It is read only if somebody names it, with `--config` or FORERUN_CONFIG: a file that counts because of the folder one
happens to stand in is found too late. What no service knows is refused with the likely name. What a key means and which
values it takes is decided in `forerun.config`; here are the file and its tables, in and out.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.setting import ConfigError

VARIABLE = "FORERUN_CONFIG"
NO_TABLE = ""  # the settings above all tables


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file's tables, every key of which is known; no file has none."""

    path: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def origin(self, table: str, key: str) -> str:
        """Names one value to the one who wrote it."""
        return f"{self.path}: [{table}] {key}" if table else f"{self.path}: {key}"


def load(
    flags: Mapping[str, Any], environment: Mapping[str, str], known: Mapping[str, Collection[str]]
) -> SettingsFile:
    """The file that a flag or else the variable names, or none. `known` are the tables and their keys."""
    path = flags.get("config") or environment.get(VARIABLE)
    if not path:
        return SettingsFile()
    try:
        document = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    return SettingsFile(path, _checked(path, document, known))


def _checked(path: str, document: dict[str, Any], known: Mapping[str, Collection[str]]) -> dict[str, dict[str, Any]]:
    """The document as tables, with what stands above them under `NO_TABLE`."""
    tables: dict[str, dict[str, Any]] = {NO_TABLE: {}}
    for key, value in document.items():
        if isinstance(value, dict):
            if key not in known or key == NO_TABLE:
                close = [f"[{name}]" for name in difflib.get_close_matches(key, known, n=1)]
                raise ConfigError(f"{path}: no service has a table [{key}]{_hint(close)}")
            tables[key] = value
        elif key in known:
            raise ConfigError(f"{path}: {key} is a table: write [{key}], and its settings below")
        else:
            tables[NO_TABLE][key] = value
    for table, values in tables.items():
        for key in values:
            if key not in known[table]:
                raise ConfigError(f"{path}: {_unknown(table, key, known)}")
    return tables


def _unknown(table: str, key: str, known: Mapping[str, Collection[str]]) -> str:
    close = difflib.get_close_matches(key, known[table], n=1)
    elsewhere = [f"[{name}] {key}" if name else f"{key}, above all tables" for name in known if key in known[name]]
    where = f"[{table}] has" if table else "above the tables there is"
    return f"{where} no setting {key}{_hint(close or elsewhere)}"


def _hint(likely: list[str]) -> str:
    return f"; did you mean {' or '.join(likely)}?" if likely else ""


def write(table: str, rows: Iterable[tuple[str, Any, str, bool]]) -> str:
    """A table of a settings file: (key, value, help, whether it is the default) a row. Defaults are comments."""
    lines = [f"[{table}]"] if table else []
    for key, value, help, is_default in rows:
        text = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
        mark = "# " if is_default else ""
        lines.append(f"{mark}{key} = {text}".ljust(40) + f" # {help}")
    return "\n".join(lines) + "\n"
