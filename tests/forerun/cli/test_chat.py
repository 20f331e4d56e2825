"""`forerun chat`: what is sent each time, what is kept, what each command does, and how it ends."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from forerun.cli import main, talk
from forerun.cli.chat import greeting
from forerun.cli.chat_commands import COMMANDS, help_text
from forerun.v1 import gateway_pb2
from tests.fake_gateway import FakeGateway, cat_script, chunk, finished, started

CAT = "The cat sat on\nmats"


def echo(request: gateway_pb2.GenerateRequest, context: Any) -> Iterator[gateway_pb2.GenerateResponse]:
    """Answers with what was said last."""
    yield started()
    yield chunk(f"<{request.chat.messages[-1].content}>", 1, 2)
    yield finished(
        completion_tokens=2, rounds=2, drafted_tokens=4, accepted_tokens=3, mean_accepted_length=1.0,
        accepted_per_position=[2, 1], drafted_per_position=[2, 2],
    )  # fmt: skip


@pytest.fixture
def chat(fake_gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a chat with these lines on stdin: exit code, stdout, stderr."""
    fake_gateway.script = echo
    monkeypatch.setattr(talk, "RETRIES", 1)

    def run(*lines: str, flags: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = main(["chat", "--address", fake_gateway.address, *flags.split()])
        return code, *capsys.readouterr()

    return run


def said(request: gateway_pb2.GenerateRequest) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in request.chat.messages]


def test_each_question_is_sent_with_all_that_was_said(chat: Any, fake_gateway: FakeGateway) -> None:
    code, out, err = chat("one", "", "two", "//three", flags="--system brief --max-tokens 9 --temperature 0.5")
    assert (code, out) == (0, "<one>\n<two>\n</three>\n")
    assert said(fake_gateway.requests[1]) == [
        ("system", "brief"), ("user", "one"), ("assistant", "<one>"), ("user", "two")
    ]  # fmt: skip
    assert len(said(fake_gateway.requests[2])) == 6
    assert (fake_gateway.requests[0].max_tokens, fake_gateway.requests[0].temperature) == (9, 0.5)
    assert err.splitlines()[0] == (
        "2 tokens · 20.0 tok/s · first after 0.25 s · 75% of 4 candidates accepted · 1.00 tokens a round · "
        "ended by stop"
    )


def test_undo_and_reset_take_turns_back(chat: Any, fake_gateway: FakeGateway) -> None:
    _, _, err = chat("one", "two", "/undo", "three", "/system be brief", "/reset", "four")
    assert said(fake_gateway.requests[2]) == [("user", "one"), ("assistant", "<one>"), ("user", "three")]
    assert said(fake_gateway.requests[3]) == [("system", "be brief"), ("user", "four")]
    assert "taken back: two" in err


def test_retry_asks_the_same_again_with_another_seed(chat: Any, fake_gateway: FakeGateway) -> None:
    chat("one", "two", "/retry", "/undo", "/retry", flags="--seed 3")
    one, two, again, first = fake_gateway.requests
    assert said(again) == said(two)
    assert said(first) == said(one)
    assert (two.seed, again.HasField("seed")) == (3, False)


def test_settings_hold_from_then_on(chat: Any, fake_gateway: FakeGateway) -> None:
    _, _, err = chat(
        "/temperature 0.75", "/max 5", "/draft 12", "/draft 6", "/off", "a", "/on", "/draft -", "/rounds", "b",
        "/system x", "/system -", "/rounds", "c", flags="--window 8",
    )  # fmt: skip
    a, b, c = fake_gateway.requests
    assert (a.temperature, a.max_tokens, a.speculation) == (
        0.75, 5, gateway_pb2.Speculation(enabled=False, draft_length=6)
    )  # fmt: skip
    assert not b.HasField("speculation")
    assert (b.include_rounds, c.include_rounds) == (True, False)
    assert said(c)[0][0] == "user"
    for note in ("temperature: 0.75", "max: 5 tokens", "draft: 6", "draft: as the gateway", "speculation: off", "■ ac"):
        assert note in err


def test_rounds_keep_the_text(chat: Any, fake_gateway: FakeGateway) -> None:
    fake_gateway.script = cat_script
    assert chat("hello", flags="--rounds")[1] == CAT + "\n"


def test_a_conversation_is_saved_and_gone_on_with(chat: Any, fake_gateway: FakeGateway, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    _, _, err = chat("one", f"/save {file}", flags="--system s")
    assert f"2 turns saved in {file}" in err
    assert json.loads(file.read_text())["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<one>"},
    ]  # fmt: skip
    chat(f"/load {file}", "two")
    assert said(fake_gateway.requests[1]) == [
        ("system", "s"), ("user", "one"), ("assistant", "<one>"), ("user", "two")
    ]  # fmt: skip


def test_stats_add_up(chat: Any) -> None:
    _, _, err = chat("/stats", "one", "two", "/stats")
    assert "0 answers, 0 tokens, no time; 0 rounds, no candidates" in err
    assert (
        "2 answers, 4 tokens, 5.7 tok/s, first tokens included; 4 rounds, 6 of 8 candidates accepted "
        "(75%; by position 1.00 0.50), 1.00 tokens a round, 0 rollbacks"
    ) in err


def test_help_lists_every_command_and_quit_leaves(chat: Any, fake_gateway: FakeGateway) -> None:
    code, out, err = chat("/help", "/quit", "never asked")
    assert (code, out, fake_gateway.requests) == (0, "", [])
    for name, command in COMMANDS.items():
        assert f"/{name}" in err and command.__doc__ and command.__doc__ in help_text()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/rest", "there is no command /rest; did you mean /reset?"),
        ("/xyz", "there is no command /xyz; /help lists them"),
        ("/temperature hot", "'hot' is not a number from 0 to 100"),
        ("/temperature nan", "'nan' is not a number from 0 to 100"),
        ("/max 0", "'0' is not a whole number from 1"),
        ("/draft 65", "'65' is not a whole number from 1 to 64"),
        ("/save", "/save needs the name of a file"),
        ("/load /nonexistent/file", "/nonexistent/file cannot be read: no such file or directory"),
        ("/save /nonexistent/file", "/nonexistent/file cannot be written: no such file or directory"),
        (f"/load {__file__}", "holds no conversation"),
        ("/undo", "nothing has been asked yet"),
        ("/retry", "nothing has been asked yet"),
    ],
)
def test_what_a_command_cannot_do_is_said(chat: Any, line: str, said: str) -> None:
    code, _, err = chat(line)
    assert code == 1 and said in err


@pytest.mark.parametrize("text", ["[]", "{}", '{"messages": [{"role": 1, "content": ""}]}', '{"messages": 3}'])
def test_a_file_that_is_no_conversation_is_refused(chat: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_text(text)
    assert "holds no conversation" in chat(f"/load {tmp_path / 'f'}")[2]


def test_a_gateway_that_goes_away_is_asked_for_the_rest(chat: Any, fake_gateway: FakeGateway) -> None:
    def script(request: gateway_pb2.GenerateRequest, context: Any) -> Iterator[gateway_pb2.GenerateResponse]:
        yield started()
        if not request.resume_token_ids:
            yield chunk("half ", 1)
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        yield chunk("and half", 2)
        yield finished()

    fake_gateway.script = script
    assert chat("hello")[:2] == (0, "half and half\n")


def test_without_a_gateway_it_says_so_at_once(chat: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--address", "no such host"]) == 1
    assert "no gateway answers at no such host" in capsys.readouterr().err


def test_the_greeting_names_the_pair() -> None:
    status = FakeGateway().GetStatus(gateway_pb2.GetStatusRequest(), None)
    assert greeting("a:1", status) == (
        "large on a:1, draft small, 4 candidates a round. /help lists commands, Ctrl-D leaves."
    )
    assert greeting("a:1", gateway_pb2.GetStatusResponse()).startswith("no target yet on a:1, no draft.")


class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, address: str) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "forerun", "chat", "--address", address]
        environment = os.environ | {"TERM": "dumb"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.screen = ""

    def wait_for(self, pattern: str) -> None:
        """Reads until the pattern is there, wherever lines break, and forgets what came up to it."""
        while not (found := re.search(pattern, self.screen)):
            assert select.select([self._ours], [], [], 20)[0], f"{pattern!r} did not come: {self.screen!r}"
            try:
                self.screen = re.sub(r"\s+", " ", self.screen + os.read(self._ours, 65536).decode(errors="replace"))
            except OSError:
                raise AssertionError(f"{pattern!r} did not come: {self.screen!r}") from None
        self.screen = self.screen[found.end() :]

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> int:
        code = self.process.wait(20)
        os.close(self._ours)
        return code


def test_in_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_leaves(fake_gateway: FakeGateway) -> None:
    go_on = threading.Event()

    def script(request: gateway_pb2.GenerateRequest, context: Any) -> Iterator[gateway_pb2.GenerateResponse]:
        if len(request.chat.messages) > 1:
            yield from echo(request, context)
            return
        yield started()
        yield chunk("It was a dark", 1, 2, 3)
        go_on.wait(30)

    fake_gateway.script = script
    terminal = Terminal(fake_gateway.address)
    terminal.wait_for("large on .*draft small.*Ctrl-D leaves. > ")
    terminal.type("tell me \\\na story\n")
    terminal.wait_for("It was a dark")
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("stopped after 3 tokens > ")
    assert fake_gateway.cancelled.wait(10)
    terminal.type("/bogus\n")
    terminal.wait_for("no command /bogus")
    terminal.type("go on\n")
    terminal.wait_for("<go on> 2 tokens .* ended by stop > ")
    terminal.type("\x04")
    assert terminal.close() == 0
    go_on.set()
    assert said(fake_gateway.requests[1]) == [
        ("user", "tell me \na story"), ("assistant", "It was a dark"), ("user", "go on")
    ]  # fmt: skip
