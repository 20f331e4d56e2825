"""From a model's name to the folder of its checkpoint, fetching it first if need be.

The fetching runs in a process of its own: converting needs torch and a gigabyte, which the gateway must not load and
the services need not keep.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from forerun.errors import NotFound


def model_folder(model: str, cache: Path) -> Path:
    """The folder of `model`, a name, hub id or path. Raises NotFound if it cannot be had; why went to stderr."""
    for folder in (Path(model).expanduser(), cache / model):
        if (folder / "config.json").is_file():
            return folder
    command = [sys.executable, "-m", "forerun.runtime.pull", model, "--cache", str(cache)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise NotFound(f"the model {model!r} cannot be had; see the line above")
    return Path(done.stdout.strip().splitlines()[-1])
