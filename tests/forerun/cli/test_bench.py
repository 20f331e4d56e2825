"""`forerun bench` as a person types it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from forerun.bench import records
from forerun.cli import background, main
from forerun.errors import InvalidArgument, Unavailable
from tests.forerun.bench.conftest import SpeculatingGateway, gateway
from tests.forerun.bench.made_up import made_up_run

__all__ = ["gateway"]

SMALL = ["--concurrency", "1", "--max-tokens", "8", "--warmup", "1"]


def test_a_running_gateway_is_measured_and_reported(
    gateway: SpeculatingGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--address", gateway.address, "--variants", "off,draft:2", *SMALL]) == 0
    out, err = capsys.readouterr()
    assert "concurrency 1, pass 1/2: draft:2" in err and "accepted" in err
    assert "Lossless: all" in out and "wrote bench.html and bench.json" in out
    run = records.restore(tmp_path / "bench.json")
    assert run.complete and [done.variant for done in run.passes] == ["off", "draft:2", "draft:2", "off"]
    first = (tmp_path / "bench.html").read_text()
    assert main(["bench", "--report-from", "bench.json", "-o", "again.html"]) == 0
    assert (tmp_path / "again.html").read_text() == first


def test_failed_requests_make_the_exit_code_1(
    gateway: SpeculatingGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").write_text('{"prompt": "fine"}\n{"prompt": "FAIL"}\n')
    arguments = ["bench", "--address", gateway.address, "--variants", "off", "--dataset", "p.jsonl", *SMALL]
    assert main([*arguments, "--warmup", "0"]) == 1
    out, err = capsys.readouterr()
    assert "1 of 2 FAILED" in err and "2 requests failed and count in no figure" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variants", "off,model:x"], "variants: model:x: 'x' is not a draft length"),
        (["--concurrency", "none"], "concurrency: 'none' is not a whole number"),
        (["--dataset", "missing.jsonl"], "dataset: cannot read missing.jsonl"),
        (["--passes", "0"], "passes: is 0, must be at least 1"),
        (["--variants", "draft:6", "--window", "4"], "window: 4 is less than the draft length of draft:6"),
        (["--pids", "gateway=x"], "pids: 'gateway=x' is not NAME=NUMBER"),
        (["--report-from", "missing.json"], "report-from: cannot read missing.json"),
    ],
)
def test_wrong_flags_are_named_before_anything_is_started(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--address", "127.0.0.1:1", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_gateway_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--address", "127.0.0.1:1"]) == 1
    assert "forerun bench: no gateway answers at 127.0.0.1:1" in capsys.readouterr().err


def test_the_services_of_a_drafter_are_started_with_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    fetched: list[str] = []
    monkeypatch.setattr(background, "pulled", lambda model, cache: fetched.append(model))
    monkeypatch.setattr(background, "services", lambda options, log: given.append([*options, log.name]))
    flags = dict.fromkeys(background.FLAGS) | {"target": "own/large", "draft": "own/small", "threads": "2"}
    launcher = background.Launcher(flags, ["ngram", "model", "ngram+model", "other/one"])
    assert list(dict.fromkeys(fetched)) == ["own/large", "own/small", "other/one"]
    for drafter in ("ngram", "model", "ngram+model", "other/one"):
        launcher(drafter)
    assert all("--port=0" in options for options in given)
    assert [[option for option in options if "port" not in option] for options in given] == [
        ["--target=own/large", "--threads=2", "--draft=ngram", "ngram.log"],
        ["--target=own/large", "--threads=2", "--draft=own/small", "model.log"],
        ["--target=own/large", "--threads=2", "--draft=ngram+own/small", "ngram+model.log"],
        ["--target=own/large", "--threads=2", "--draft=other/one", "other-one.log"],
    ]


def test_model_is_what_up_would_take_and_must_be_named_for_another_target(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(background, "pulled", lambda model, cache: None)
    monkeypatch.setattr(background, "services", lambda options, log: given.append(options))
    flags = dict.fromkeys([*background.FLAGS, "draft"])
    launcher = background.Launcher(flags, ["model"])
    launcher("model")
    assert given[0][-1] == "--draft=smollm2-135m-draft"
    with pytest.raises(InvalidArgument, match="draft: is needed: which draft model is `model`, for own/large"):
        background.Launcher(flags | {"target": "own/large"}, ["ngram", "model"])
    background.Launcher(flags | {"target": "own/large"}, ["ngram"])


async def _reach(options: list[str], log: Path) -> tuple[str, dict[str, int]]:
    async with background.services(options, log) as reachable:
        return reachable.address, dict(reachable.pids)


def test_services_are_stopped_at_the_end_and_their_last_words_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "up.py"
    script.write_text(
        "import signal, sys\n"
        "if sys.argv[1] == 'fails':\n"
        "    print('noise', file=sys.stderr)\n"
        "    sys.exit('forerun up: the draft stopped with exit code 3')\n"
        "print('forerun | started draft pid=77 address=a', file=sys.stderr, flush=True)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('stopped'))\n"
        "print('ready: gateway on 127.0.0.1:9', flush=True)\n"
        "signal.pause()\n"
    )
    monkeypatch.setattr(background, "UP", [sys.executable, str(script)])
    log = tmp_path / "up.log"
    assert asyncio.run(_reach(["works"], log)) == ("127.0.0.1:9", {"draft": 77})
    assert log.read_text().endswith("stopped\n")
    with pytest.raises(Unavailable, match=r"did not start.*\nforerun up: the draft stopped with exit code 3$"):
        asyncio.run(_reach(["fails"], log))


def test_a_report_of_a_run_from_elsewhere_needs_no_services(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records.save(made_up_run(), tmp_path / "bench.json")
    assert main(["bench", "--report-from", str(tmp_path / "bench.json"), "-o", str(tmp_path / "r.html")]) == 0
    assert "Run model:" in capsys.readouterr().out
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_ctrl_c_keeps_the_passes_that_were_complete(
    gateway: SpeculatingGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    gateway.interrupted_at = 6  # in the third pass: one warm-up request, then two a pass
    arguments = ["bench", "--address", gateway.address, "--variants", "off,draft:2", *SMALL, "--passes", "2"]
    assert main(arguments) == 130
    run = records.restore(tmp_path / "bench.json")
    assert not run.complete and 1 <= len(run.passes) < 4
    assert "The run was interrupted" in capsys.readouterr().out
    assert "The run was interrupted" in (tmp_path / "bench.html").read_text()
