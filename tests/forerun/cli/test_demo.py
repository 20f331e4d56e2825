"""The demo shows the answer as it comes, and says why services did not start."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from forerun.cli import demo
from forerun.cli.client import ask
from forerun.errors import Unavailable
from tests.fake_gateway import FakeGateway


def test_the_answer_is_shown_while_it_comes(fake_gateway: FakeGateway) -> None:
    buffer = io.StringIO()
    shown = demo.speak(Console(file=buffer), fake_gateway.address, demo.request("hello", 9, True))
    assert buffer.getvalue() == "The cat sat on\nmats\n"
    assert shown.text == ask(fake_gateway.address, demo.request("hello", 9, True)).text


def test_services_that_do_not_start_are_reported_with_their_log(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"did not start; the end of .*:\n.*'int4' is not one of"):
        asyncio.run(demo.demo(Console(file=io.StringIO()), tmp_path / "log", ["--dtype=int4"]))
