"""`forerun config`: what it shows, and that what it writes gives the same settings again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun import config
from forerun.cli import main
from forerun.cli.plan import make_plan

EXAMPLE = Path(__file__).parents[3] / "deploy" / "forerun.example.toml"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FORERUN_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "f.toml"
    path.write_text(
        'cache = "/models"\n[target]\nport = 7\n[gateway]\ntargets = ["a:1", "b:\\"2"]\n[up]\nthreads = 3\n'
    )
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["config", *words]) == 0
    return capsys.readouterr().out


def test_each_value_is_shown_with_its_origin(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_TARGET_DEVICE", "cuda:1")
    out = printed(capsys, "target", "--config", file, "--host", "::1")
    rows = {words[0]: words[1:] for line in out.splitlines() if (words := line.split())}
    assert rows["host"] == ["::1", "--host"]
    assert rows["device"] == ["cuda:1", "FORERUN_TARGET_DEVICE"]
    assert rows["port"] == ["7", f"{file}:", "[target]", "port"]
    assert rows["block_size"] == ["16", "default"]
    assert "[gateway]" not in rows


def test_without_a_name_every_table_is_shown(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "--config", file)
    assert all(f"[{table}]" in out for table in config.TABLES if table)
    assert printed(capsys, "--config", file, "up") in printed(capsys, "up", "--config", file)


def test_what_it_writes_gives_the_same_settings(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_DRAFT_GRACE_S", "0.5")
    again = tmp_path / "again.toml"
    again.write_text(printed(capsys, "--config", file, "--toml"))
    for table, kinds in config.TABLES.items():
        for kind in kinds:
            before = config.resolve(kind, {"config": file}, prefix=table)
            assert config.resolve(kind, {"config": str(again)}, {}) == before


def test_the_example_is_what_the_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert EXAMPLE.read_text() == printed(capsys, "--toml"), f"forerun config --toml > {EXAMPLE}"


def test_a_wrong_file_stops_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.toml"
    path.write_text("[gateway]\nwidnow = 8\n")
    for command in (["config"], ["up"], ["target"], ["draft"], ["gateway"], ["pull", "x"], ["generate", "x"]):
        assert main([*command, "--config", str(path)]) == 2
        assert f"{path}: [gateway] has no setting widnow; did you mean window?" in capsys.readouterr().err


def test_up_takes_the_file_for_all_three_services(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(
        '[target]\nmodel = "owner/m"\nport = 0\n[draft]\nport = 0\n[gateway]\nport = 0\nwindow = 8\n'
        "[up]\nthreads = 3\nstart_timeout = 9\n"
    )
    made = make_plan({"config": str(path)}, {}, 8)
    assert made.draft is not None
    assert (made.target.model, made.draft.model, made.gateway.window) == ("owner/m", "ngram", 8)
    assert (made.target.threads, made.start_timeout_s) == (3, 9.0)
    path.write_text(path.read_text().replace("[draft]\n", '[draft]\nmodel = "owner/d"\n'))
    named = make_plan({"config": str(path), "window": "4", "draft_length": "2"}, {"FORERUN_UP_THREADS": "4"}, 8)
    assert named.draft is not None
    assert (named.draft.model, named.gateway.window) == ("owner/d", 4)
    assert (named.target.threads, named.draft.threads) == (3, 1)
