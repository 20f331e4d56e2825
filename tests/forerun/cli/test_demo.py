"""The demo's verdict: honest about speed, strict about texts, and it waits for the whole trace."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from forerun.cli import demo
from forerun.cli.client import ask
from forerun.client import Answer, Finished, Timing
from forerun.errors import Unavailable
from tests.fake_gateway import FakeGateway


def answer(token_ids: list[int], pace_ms: int, text: str = "same") -> Answer:
    timing = Timing(time_per_output_token_ns=pace_ms * 1_000_000)
    return Answer(text=text, token_ids=token_ids, finished=Finished(timing=timing))


def verdict(plain: list[Answer], speculative: list[Answer]) -> tuple[int, str]:
    buffer = io.StringIO()
    code = demo.verdict(Console(file=buffer, width=200), plain, speculative)
    return code, buffer.getvalue()


def test_speed_is_that_of_the_fastest_run() -> None:
    assert demo.speed([answer([1, 2, 3], 50), answer([1, 2, 3], 150)]) == pytest.approx(20.0)
    assert demo.speed([answer([1], 0)]) == 0.0


def test_equal_texts_are_identical_and_a_gain_is_a_gain() -> None:
    code, said = verdict([answer([1, 2], 50)], [answer([1, 2], 25)])
    assert code == 0
    assert "2.00 times as fast" in said
    assert "identical" in said


def test_slower_speculation_is_said_to_be_slower() -> None:
    code, said = verdict([answer([1, 2], 50)], [answer([1, 2], 100)])
    assert code == 0
    assert "speculation is slower here, at 0.50 times the speed" in said


def test_different_texts_fail_and_are_shown() -> None:
    code, said = verdict([answer([1, 2, 3], 50, "abc")], [answer([1, 9, 3], 50, "axc")])
    assert code == 1
    assert "part at output token 1" in said
    assert "'abc'" in said and "'axc'" in said
    assert "identical" not in said


def test_a_second_run_that_differs_from_the_first_is_found() -> None:
    same = answer([1, 2], 50)
    assert verdict([same, answer([1, 3], 50)], [same, same])[0] == 1


def test_the_answer_is_shown_while_it_comes(fake_gateway: FakeGateway) -> None:
    buffer = io.StringIO()
    shown = demo.speak(Console(file=buffer), fake_gateway.address, demo.request("hello", 9, True))
    assert buffer.getvalue() == "The cat sat on\nmats\n"
    assert shown.text == ask(fake_gateway.address, demo.request("hello", 9, True)).text


def test_services_that_do_not_start_are_reported_with_their_log(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"did not start; the end of .*:\n.*'int4' is not one of"):
        asyncio.run(demo.demo(Console(file=io.StringIO()), tmp_path / "log", ["--dtype=int4"]))
