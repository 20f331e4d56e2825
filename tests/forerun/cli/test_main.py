"""The command as a whole: help, version, what each service command becomes, and what is not imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forerun import __version__
from forerun.cli import main


@pytest.mark.parametrize(
    "command",
    [[], ["up"], ["generate"], ["chat"], ["pull"], ["target"], ["draft"], ["gateway"], ["config"], ["check-pair"]],
)
def test_every_help_has_an_example_and_fits_the_page(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert f"forerun {' '.join(command)}".strip() in text.split("\n\n", 1)[1]
    assert max(len(line) for line in text.splitlines()) <= 120


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"forerun {__version__}\n"


@pytest.mark.parametrize(
    ("name", "module"), [("target", "target_service"), ("draft", "draft_service"), ("gateway", "gateway")]
)
def test_a_service_command_becomes_the_service_with_all_its_settings(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, command: became.append(command))
    monkeypatch.setenv(f"FORERUN_{name.upper()}_HOST", "::1")
    main([name, "--port", "7"])
    assert became[0][:3] == [sys.executable, "-m", module]
    assert became[0][became[0].index("--port") + 1] == "7"
    assert became[0][became[0].index("--host") + 1] == "::1"


def test_pull_prints_the_folder_or_why_not(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    pull = [sys.executable, "-m", "forerun", "pull"]
    assert subprocess.check_output([*pull, tmp_path], text=True) == f"{tmp_path}\n"
    failed = subprocess.run([*pull, tmp_path / "missing"], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "missing holds no config.json" in failed.stderr


def test_up_says_which_model_cannot_be_had(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ports = ["--port", "0", "--target-port", "0", "--draft-port", "0"]
    assert main(["up", "--target", str(tmp_path / "missing"), *ports]) == 1
    assert "forerun up: the model" in capfd.readouterr().err


def test_the_command_line_loads_no_model_code() -> None:
    code = "import forerun.cli, forerun.cli.demo, sys; print([m for m in ('torch', 'transformers', 'forerun.runtime', "
    code += "'gateway', 'draft_service', 'target_service') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
