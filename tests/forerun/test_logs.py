"""Log lines: what they look like, and what never gets into them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from forerun import logs

logger = logging.getLogger("forerun.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def set_up(stream: io.StringIO | None = None, **environment: str) -> io.StringIO:
    stream = io.StringIO() if stream is None else stream
    logs.setup("forerun-gateway", stream, environment)
    return stream


def test_a_line_is_time_level_service_event_and_fields() -> None:
    stream = set_up()
    logs.event(logger, "request_ended", tokens=32, seconds=1.23456, reason="stop", empty="", odd='a "b"', pair="a=b")
    (line,) = lines(stream)
    time, rest = line.split(" ", 1)
    assert time.endswith("Z") and len(time) == len("2026-01-01T00:00:00.000Z")
    assert rest == (
        'INFO    gateway request_ended tokens=32 seconds=1.235 reason=stop empty="" odd="a \\"b\\"" pair="a=b"'
    )


def test_json_lines_hold_the_same() -> None:
    stream = set_up(FORERUN_LOG_FORMAT="json")
    logs.event(logger, "request_ended", tokens=32, ok=True, level_=1, rate=float("nan"), time="mine")
    found = json.loads(lines(stream)[0], parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    assert found.pop("time")
    assert found == {
        "level": "INFO",
        "service": "gateway",
        "event": "request_ended",
        "tokens": 32,
        "ok": True,
        "level_": 1,
        "rate": "nan",
        "time_": "mine",
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_field_can_forge_a_line_or_talk_to_the_terminal(form: str) -> None:
    stream = set_up(FORERUN_LOG_FORMAT=form)
    logs.event(logger, "refused", client="x\n2026 INFO target fake\x1b[2J\x9b2J")
    logging.getLogger("library").warning("two\nlines\x1b[2J")
    assert len(lines(stream)) == 2
    assert "\x1b" not in stream.getvalue() and "\x9b" not in stream.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_long_values_are_cut(form: str) -> None:
    stream = set_up(FORERUN_LOG_FORMAT=form)
    logs.event(logger, "refused", text="x" * 100_000)
    assert len(stream.getvalue()) < 1000


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_error_brings_its_traceback(form: str) -> None:
    stream = set_up(FORERUN_LOG_FORMAT=form)
    try:
        raise KeyError("bug")
    except KeyError as error:
        logs.event(logger, "step_failed", level=logging.ERROR, error=error)
    assert "KeyError: 'bug'" in stream.getvalue() and "test_logs.py" in stream.getvalue()


def test_the_service_is_coloured_on_a_terminal_only() -> None:
    for stream, environment, coloured in (
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (io.StringIO(), {}, False),
    ):
        set_up(stream, **environment)
        logs.event(logger, "ready")
        assert ("\x1b[36mgateway" in stream.getvalue()) is coloured


def test_the_level_is_a_variable() -> None:
    stream = set_up(FORERUN_LOG_LEVEL="warning")
    logs.event(logger, "ready")
    logs.event(logger, "lost", level=logging.WARNING)
    assert len(lines(stream)) == 1


def test_a_level_that_is_none_is_said_and_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(FORERUN_LOG_LEVEL="loud")
    assert "'loud'" in capsys.readouterr().err
    assert logging.getLogger().level == logging.INFO


def test_libraries_are_quiet_and_named() -> None:
    stream = set_up()
    logging.getLogger("urllib3.connectionpool").info("starting")
    logging.getLogger("urllib3.connectionpool").warning("retrying")
    assert [line.split(" ", 1)[1] for line in lines(stream)] == ["WARNING gateway urllib3.connectionpool: retrying"]


def test_setting_up_again_replaces() -> None:
    first, second = set_up(), set_up()
    logs.event(logger, "ready")
    assert not lines(first) and len(lines(second)) == 1
