"""The README's commands do what it says: every block is run as it stands, on the services that `forerun up` started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(bash|python)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
# Run elsewhere: `make` by CI itself, `forerun up` by the fixture.
NOT_HERE = re.compile(r"make (demo|test)\b|\.venv/bin/forerun up\b")
COMMANDS = [
    command
    for language, block in BLOCKS
    for command in ([block] if language == "python" else block.strip().split("\n"))
    if not NOT_HERE.match(command)
]


def test_the_first_screen_is_one_screen() -> None:
    first = README.split("\n## ", 1)[0]
    assert len(first.splitlines()) <= 60
    assert "make demo" in first and "make test" in first


def test_every_linked_file_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_path_in_the_tree_exists() -> None:
    for row in re.findall(r"^\| (`[a-z_/0-9`\s]+`) \|", README.split("## How it works")[0], re.MULTILINE):
        for path in re.findall(r"`([^`]+)`", row):
            assert (ROOT / path).is_dir(), path


@pytest.mark.real_model
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_and_prints_something(command: str, trio: object) -> None:
    gateway: str = getattr(trio, "gateway")  # noqa: B009 - the class lies in conftest, which cannot be imported
    command = command.replace("127.0.0.1:50060", gateway).replace(".venv/bin/", "")
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    python = "import Client" in command
    shell = [sys.executable, "-c", command] if python else ["bash", "-ceuo", "pipefail", command]
    environment = os.environ | {"FORERUN_ADDRESS": gateway, "PATH": scripts}
    done = subprocess.run(shell, capture_output=True, text=True, timeout=120, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
