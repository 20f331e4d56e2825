"""Logs for people and for machines: one line an event on stderr, `time level service event key=value ...`.

FORERUN_LOG_FORMAT=json gives one JSON object a line instead, FORERUN_LOG_LEVEL the least level that is shown. Both are
read here and not in `forerun.config`, since whatever goes wrong with a config has to be logged too. Prompts and
outputs are never fields; what a request said is its client's business.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

COLOURS: Mapping[str, str] = {"gateway": "cyan", "draft": "yellow", "target": "magenta"}
MAX_VALUE_CHARACTERS = 400

_ANSI = {"cyan": "\x1b[36m", "yellow": "\x1b[33m", "magenta": "\x1b[35m"}
_RESET = "\x1b[0m"
_NOISY = ("grpc", "asyncio", "transformers", "huggingface_hub", "urllib3", "httpx", "opentelemetry")


def setup(service: str, stream: TextIO | None = None, environment: Mapping[str, str] | None = None) -> None:
    """Sends all logging of this process to stderr as lines of `service`. Calling it again replaces the first."""
    environment = os.environ if environment is None else environment
    stream = sys.stderr if stream is None else stream
    service = service.removeprefix("forerun-")
    handler = _Handler(stream)
    if environment.get("FORERUN_LOG_FORMAT", "text").lower() == "json":
        handler.setFormatter(JsonFormatter(service))
    else:
        coloured = stream.isatty() and "NO_COLOR" not in environment
        handler.setFormatter(TextFormatter(service, coloured))
    root = logging.getLogger()
    root.handlers = [*(other for other in root.handlers if not isinstance(other, _Handler)), handler]
    root.setLevel(_level(environment.get("FORERUN_LOG_LEVEL", "INFO")))
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


def event(
    logger: logging.Logger,
    name: str,
    /,
    *,
    level: int = logging.INFO,
    error: BaseException | None = None,
    **fields: Any,
) -> None:
    """Logs that something happened. `name` is a snake_case verb or state; `error` adds its traceback."""
    if logger.isEnabledFor(level):
        logger.log(level, name, extra={"fields": fields}, exc_info=error, stacklevel=2)


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, told apart from the handlers of others."""


class TextFormatter(logging.Formatter):
    """Columns, then fields; values are quoted where they must be, and a traceback follows on lines of its own."""

    def __init__(self, service: str, coloured: bool) -> None:
        super().__init__()
        colour = _ANSI.get(COLOURS.get(service, ""), "") if coloured else ""
        self._prefix = f"{colour}{service:<7}{_RESET}" if colour else f"{service:<7}"

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), f"{record.levelname:<7}", self._prefix, _message(record)]
        parts += [f"{key}={_quoted(value)}" for key, value in _fields(record).items()]
        line = " ".join(parts)
        if record.exc_info and record.exc_info[0]:
            line += f"\n{self.formatException(record.exc_info)}"
        return line

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"    {line}" for line in super().formatException(ei).splitlines())


class JsonFormatter(logging.Formatter):
    """One object a line; a field that has a name of ours keeps it with an underscore behind."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "service": self._service,
            "event": _message(record),
        }
        for key, value in _fields(record).items():
            plain = isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
            line[f"{key}_" if key in line else key] = value if plain else _short(value)
        if record.exc_info and record.exc_info[0]:
            line["traceback"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False)
        return text if text.isprintable() else json.dumps(line)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _message(record: logging.LogRecord) -> str:
    """An event's name, or what a library had to say, on one line and together with the library's name."""
    message = record.getMessage()
    if not hasattr(record, "fields") and not record.name.startswith("forerun"):
        message = f"{record.name}: {message}"
    return "".join(character if character.isprintable() else " " for character in message)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else _short(value)
    if text and text.isprintable() and not any(character in ' "=' for character in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"


def _level(name: str) -> int:
    level = logging.getLevelNamesMapping().get(name.strip().upper())
    if level is None:
        print(f"FORERUN_LOG_LEVEL: {name!r} is not a level, INFO is taken", file=sys.stderr)
        return logging.INFO
    return level
