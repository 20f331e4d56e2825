"""Compilations are kept where models are, unless the operator says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun.runtime.compiled import keep_compilations

NAMES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def test_they_are_kept_below_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that both are restored
        monkeypatch.delenv(name)
    keep_compilations(tmp_path)
    places = {Path(os.environ[name]) for name in NAMES}
    assert len(places) == 2 and all(place.is_relative_to(tmp_path) for place in places)


def test_what_the_environment_names_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "/elsewhere")
    keep_compilations(tmp_path)
    assert {os.environ[name] for name in NAMES} == {"/elsewhere"}
