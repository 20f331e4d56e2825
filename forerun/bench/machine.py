"""What the run ran on: the machine, its memory and GPUs, and the versions that matter.

Everything is optional: what cannot be read here is left out, and the report says nothing of it.
"""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from forerun import __version__
from forerun.bench.records import Gpu

_PACKAGES = ("grpcio", "protobuf", "torch", "transformers")


def describe() -> dict[str, Any]:
    """Cores, CPU, memory, GPUs, and how busy the machine was with other things."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found: dict[str, Any] = {"system": platform.platform(), "cores": cores, "cpu": _cpu_model()}
    found["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found["busy_cores"] = os.getloadavg()[0]
    found["gpus"] = [gpu.name for gpu in Gpus().read()]
    return found


def versions() -> dict[str, str]:
    """Of forerun and of what it stands on, as installed here."""
    found = {"forerun": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def pss_bytes(pids: Mapping[str, int]) -> dict[str, int]:
    """Memory by service: pages that several processes share count in parts. Linux only; else empty."""
    found = {}
    for service, pid in pids.items():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        found[service] = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return found


class Gpus:
    """Reads memory and utilisation through NVML, if `pynvml` is installed and there is a GPU."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            self._nvml = nvml
        except Exception:  # not installed, no driver, no permission: all mean that there is nothing to read
            self._handles = []

    def __bool__(self) -> bool:
        return bool(self._handles)

    def read(self) -> list[Gpu]:
        """One reading of each GPU. Utilisation is NVML's own, of the last fraction of a second."""
        return [
            Gpu(
                name=_text(self._nvml.nvmlDeviceGetName(handle)),
                used_mib=self._nvml.nvmlDeviceGetMemoryInfo(handle).used >> 20,
                utilisation=self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            )
            for handle in self._handles
        ]


def over_time(readings: list[list[Gpu]]) -> list[Gpu]:
    """Many readings of the same GPUs as one: the most memory, the mean utilisation."""
    return [
        Gpu(of_one[0].name, max(gpu.used_mib for gpu in of_one), sum(gpu.utilisation for gpu in of_one) / len(of_one))
        for of_one in zip(*readings, strict=True)
    ]


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
