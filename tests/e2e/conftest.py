"""What the end-to-end tests share: a tiny pair of models, one event loop a module, no traces to outside."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.trio import Pair, make_pair


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    """No trace receiver of the machine hears of the tests."""
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OTEL_")}
    yield
    os.environ.update(taken)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A tiny target, and a draft that agrees with it about every other time."""
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def loop() -> Iterator[Any]:
    """`loop.run(coroutine)` on one event loop for the whole module, so that a trio may outlive a test."""
    with asyncio.Runner() as runner:
        yield runner
