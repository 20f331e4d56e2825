"""`forerun check-pair`: the command it becomes, and what it refuses by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun.cli import build_parser, check_pair, main


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FORERUN_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def command(*words: str) -> list[str]:
    return check_pair.command(build_parser().parse_args(["check-pair", *words]))


def value(found: list[str], flag: str) -> str:
    return found[found.index(flag) + 1]


def test_the_process_gets_the_settings_that_up_would_give(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_DRAFT_NGRAM_MAX", "7")
    found = command("--target", str(model), "--draft", str(model), "--dtype", "bfloat16", "--threads", "2", "--json")
    assert found[1:3] == ["-m", "draft_service.check_pair"]
    assert (value(found, "--model"), value(found, "--target")) == (str(model), str(model))
    assert (value(found, "--dtype"), value(found, "--target-dtype")) == ("bfloat16", "bfloat16")
    assert (value(found, "--threads"), value(found, "--target-threads")) == ("1", "2")  # a draft gets half
    assert value(found, "--ngram-max") == "7"
    assert found[-1] == "--json"


def test_a_restricted_draft_is_asked_for_by_its_size(model: Path) -> None:
    found = command("--target", str(model), "--draft", str(model), "--draft-vocabulary", "4096")
    assert value(found, "--vocabulary") == "4096"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--prompts", "0"], "--prompts: 0 is not from 1 to 12"),
        (["--draft-length", "9"], "--draft-length: 9 is not from 1 to 8"),
        (["--temperature", "-1"], "--temperature: -1 is less than 0"),
        (["--draft", "none"], "nothing to check"),
    ],
)
def test_wrong_usage_is_exit_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-pair", *words]) == 2
    assert says in capsys.readouterr().err
