"""What all tests share: the three services on the default pair, started once for those that ask for them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forerun.cli.child import guarded

ROOT = Path(__file__).parents[1]
# Taken out of the environment: services refuse a FORERUN_ variable that is no setting of theirs.
MODELS_REQUIRED = os.environ.pop("FORERUN_REQUIRE_MODELS", "") not in ("", "0")
START_TIMEOUT_S = 300  # the first time, the model is fetched and converted


@dataclass(frozen=True, slots=True)
class Trio:
    """Three running services, kept by `forerun up`, which restarts those that a test kills."""

    gateway: str
    target: str
    draft: str
    log: Path

    def pid(self, service: str) -> int:
        """The latest process of a service."""
        return int(re.findall(rf"started {service} pid=(\d+)", self.log.read_text())[-1])


@pytest.fixture(scope="session")
def models_required() -> bool:
    """FORERUN_REQUIRE_MODELS=1: tests of the real pair fail, rather than be skipped, where a model is missing."""
    return MODELS_REQUIRED


@pytest.fixture(scope="session")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """The services on free ports with the embedded default pair. Ask for it under the marker `real_model`."""
    log = tmp_path_factory.mktemp("trio") / "services.log"
    command = [sys.executable, "-m", "forerun", "up", "--port=0", "--target-port=0", "--draft-port=0"]
    command.append(f"--start-timeout={START_TIMEOUT_S}")
    with (
        log.open("wb") as file,
        subprocess.Popen(guarded(command), stdout=subprocess.PIPE, stderr=file, cwd=ROOT) as up,
    ):
        assert up.stdout is not None
        ready = up.stdout.readline().decode()
        if not ready.startswith("ready:"):
            up.wait()
            pytest.fail(f"`forerun up` did not start:\n{log.read_text()[-4000:]}")
        found = dict(re.findall(r"started (\w+) pid=\d+ address=(\S+)", log.read_text()))
        yield Trio(ready.split()[-1], found["target"], found["draft"], log)
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0, log.read_text()[-4000:]
