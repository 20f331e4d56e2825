"""`forerun up` as a person sees it, with services that have no models."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

from forerun.cli import main, plan, up
from forerun.config import CacheConfig

SERVICE = Path(__file__).parents[2] / "fake_service.py"
FREE = ["--port", "0", "--target-port", "0", "--draft-port", "0"]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Models that would have been pulled; the services are fakes that stop as soon as all are ready."""
    pulled: list[str] = []

    def command(name: str, settings: plan.Settings, cache: CacheConfig) -> list[str]:
        mode = "dies" if getattr(settings, "model", "") == "broken" and name == "target" else "well"
        return [sys.executable, str(SERVICE), name, str(settings.port), mode]

    def pull(model: str, cache: CacheConfig) -> Path:
        pulled.append(model)
        return cache.folder / model

    def ready(screen: up.Screen, gateway: str) -> None:
        announce(screen, gateway)
        os.kill(os.getpid(), signal.SIGTERM)

    announce = up.Screen.ready
    monkeypatch.setattr(plan, "service_command", command)
    monkeypatch.setattr(up, "pulled", pull)
    monkeypatch.setattr(up.Screen, "ready", ready)
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    return pulled


def test_up_pulls_starts_announces_and_stops_cleanly(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", *FREE, "--threads", "3"]) == 0
    out, err = capsys.readouterr()
    assert models == ["smollm2-135m"]
    address = re.fullmatch(r"ready: gateway on (\S+)\n", out)
    assert address is not None
    assert "draft ngram+smollm2-135m-draft; CPU threads: target 3, draft 1 (they take turns)" in err
    assert f"--rounds --address {address.group(1)}" in err
    assert "target  │ target begins" in err
    assert err.rstrip().splitlines()[-1].split("│")[0].strip() in ("target", "draft")  # the gateway went first


def test_a_failed_start_names_the_service_and_shows_its_last_words(
    models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", *FREE, "--target", "broken"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "forerun up: the target stopped with exit code 3 before it was ready" in err
    assert "Traceback" not in err


def test_a_bad_setting_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--dtype", "int4"]) == 2
    assert capsys.readouterr().err == (
        "forerun up: --dtype: 'int4' is not one of auto, float32, bfloat16, float16 (see `forerun up --help`)\n"
    )


def test_a_terminal_gets_the_time_of_day_and_no_level_unless_it_matters() -> None:
    buffer = io.StringIO()
    screen = up.Screen(Console(file=buffer, width=100, force_terminal=True, color_system=None))
    screen.log("target", "2026-01-01T00:00:07.123Z INFO    target  listening address=127.0.0.1:1")
    screen.log("target", "2026-01-01T00:00:07.123Z WARNING target  replica_lost")
    screen.log("target", "loading the target model")
    first, second, third = buffer.getvalue().splitlines()
    assert re.fullmatch(r"target  │ \d\d:\d\d:07 listening address=127.0.0.1:1", first)
    assert second.endswith(":07 WARNING replica_lost")
    assert third == "target  │ loading the target model"


def test_log_lines_carry_their_service_once_and_json_stays_json() -> None:
    buffer = io.StringIO()
    screen = up.Screen(Console(file=buffer, width=40))
    screen.log("target", "2026-01-01T00:00:00.000Z INFO    target  listening address=127.0.0.1:1 a_long_field=[b]")
    screen.log("target", '{"event": "listening", "list": [1, 2, 3], "text": "longer than forty columns are"}')
    screen.log("draft", "Traceback (most recent call last):")
    assert buffer.getvalue().splitlines() == [
        "target  │ 2026-01-01T00:00:00.000Z INFO    listening address=127.0.0.1:1 a_long_field=[b]",
        '{"event": "listening", "list": [1, 2, 3], "text": "longer than forty columns are"}',
        "draft   │ Traceback (most recent call last):",
    ]
