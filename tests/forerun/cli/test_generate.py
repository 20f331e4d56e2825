"""`forerun generate` against a scripted gateway: what it sends, what it prints, and how it fails."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from forerun.cli import main
from forerun.v1 import gateway_pb2, types_pb2
from tests.fake_gateway import FakeGateway, chunk, finished, started

TEXT = "The cat sat on\nmats"


def generate(fake: FakeGateway, *words: str) -> int:
    return main(["generate", *words, "--address", fake.address])


def test_the_text_goes_to_stdout_and_the_cost_to_stderr(
    fake_gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(fake_gateway, "hello") == 0
    out, err = capsys.readouterr()
    assert out == TEXT + "\n"
    assert err.strip() == (
        "6 tokens · 20.0 tok/s · first after 0.25 s · 60% of 5 candidates accepted · 1.50 tokens a round · "
        "ended by stop"
    )


def test_json_is_one_object_with_the_promised_keys(
    fake_gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(fake_gateway, "hello", "--json", "--seed", "18446744073709551615") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "text": TEXT,
        "token_ids": [10, 11, 12, 13, 14, 15],
        "finish_reason": "stop",
        "seed": 18446744073709551615,
        "usage": {"prompt_tokens": 3, "completion_tokens": 6},
        "speculation": {
            "rounds": 4,
            "drafted_tokens": 5,
            "accepted_tokens": 3,
            "accepted_per_position": [3, 0],
            "mean_accepted_length": 1.5,
            "rollbacks": 1,
        },
        "timing": {"ttft_s": 0.25, "tpot_s": 0.05, "total_s": 0.35},
    }


def test_rounds_are_explained_after_the_text(fake_gateway: FakeGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(fake_gateway, "hello", "--rounds") == 0
    out = capsys.readouterr().out
    assert out.startswith(TEXT + "\n")
    assert "\x1b" not in out  # not a terminal
    assert [line.split()[0] for line in out.splitlines() if "/" in line or " - " in line] == ["0", "1", "2", "3"]
    assert "The| dog" in out
    assert fake_gateway.requests[0].include_rounds


def test_a_prompt_is_a_user_turn_and_defaults_are_greedy(fake_gateway: FakeGateway) -> None:
    assert generate(fake_gateway, "hello", "--system", "be brief") == 0
    (sent,) = fake_gateway.requests
    assert [(turn.role, turn.content) for turn in sent.chat.messages] == [("system", "be brief"), ("user", "hello")]
    assert (sent.temperature, sent.max_tokens) == (0.0, 128)
    assert not sent.HasField("seed")
    assert not sent.HasField("speculation")
    assert not sent.HasField("logprobs")


def test_every_flag_reaches_the_request(fake_gateway: FakeGateway) -> None:
    words = "--raw --max-tokens 9 --temperature 0.5 --top-p 0.9 --top-k 40 --min-p 0.1 --seed 3 --stop a --stop b"
    words += " --draft-length 6 --window 12 --logprobs 2 --timeout 30"
    assert generate(fake_gateway, "hello", *words.split()) == 0
    expected = gateway_pb2.GenerateRequest(
        text="hello", max_tokens=9, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=3, stop=["a", "b"],
        logprobs=2, speculation=gateway_pb2.Speculation(draft_length=6, window=12),
    )  # fmt: skip
    assert fake_gateway.requests == [expected]
    assert 20 < fake_gateway.time_remaining_s < 31


def test_no_speculation_is_sent_as_such(fake_gateway: FakeGateway) -> None:
    generate(fake_gateway, "hello", "--no-speculation")
    assert fake_gateway.requests[0].speculation == gateway_pb2.Speculation(enabled=False)


def test_a_dash_reads_the_prompt_from_stdin(fake_gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    assert generate(fake_gateway, "-") == 0
    assert fake_gateway.requests[0].chat.messages[0].content == "from a pipe\n"


def test_logprobs_are_listed_token_by_token(fake_gateway: FakeGateway, capsys: pytest.CaptureFixture[str]) -> None:
    entry = types_pb2.TokenLogprobs(logprob=-0.5, top_token_ids=[4, 5], top_logprobs=[-0.5, -1.0])

    def script(request: gateway_pb2.GenerateRequest, context: Any) -> Iterator[gateway_pb2.GenerateResponse]:
        yield started()
        yield chunk("hi", 4, logprobs=[entry], token_texts=["hi"])
        yield finished(completion_tokens=1)

    fake_gateway.script = script
    generate(fake_gateway, "hello", "--logprobs", "2")
    assert "  -0.500  'hi'                 4:-0.500  5:-1.000" in capsys.readouterr().out
    generate(fake_gateway, "hello", "--logprobs", "2", "--json")
    assert json.loads(capsys.readouterr().out)["logprobs"] == [{"logprob": -0.5, "top": {"4": -0.5, "5": -1.0}}]


def refuse(fake: FakeGateway, code: grpc.StatusCode, details: str, after: str = "") -> None:
    def script(request: gateway_pb2.GenerateRequest, context: Any) -> Iterator[gateway_pb2.GenerateResponse]:
        yield started()
        if after:
            yield chunk(after, 1)
        context.abort(code, details)

    fake.script = script


@pytest.mark.parametrize(
    ("code", "details", "exit_code", "said"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "top_p: is 7", 2, "refused the request: top_p: is 7"),
        (grpc.StatusCode.UNAVAILABLE, "no target for 30 s", 1, "no answer now: no target for 30 s"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "late", 1, "raise --timeout"),
        (grpc.StatusCode.UNIMPLEMENTED, "", 1, "is not a forerun gateway"),
        (grpc.StatusCode.INTERNAL, "oops", 1, "the gateway failed: INTERNAL: oops"),
    ],
)
def test_every_failure_is_one_line_that_says_what_to_do(
    fake_gateway: FakeGateway,
    capsys: pytest.CaptureFixture[str],
    code: grpc.StatusCode,
    details: str,
    exit_code: int,
    said: str,
) -> None:
    refuse(fake_gateway, code, details)
    assert generate(fake_gateway, "hello") == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_failure_in_mid_answer_starts_a_line_of_its_own(
    fake_gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(fake_gateway, grpc.StatusCode.UNAVAILABLE, "target lost", after="half an ans")
    assert generate(fake_gateway, "hello") == 1
    assert capsys.readouterr().out == "half an ans\n"


def test_a_full_gateway_says_when_to_come_back(fake_gateway: FakeGateway, capsys: pytest.CaptureFixture[str]) -> None:
    retry = any_pb2.Any()
    retry.Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2, nanos=500_000_000)))
    status = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="queue", details=[retry])

    def script(request: gateway_pb2.GenerateRequest, context: Any) -> Iterator[gateway_pb2.GenerateResponse]:
        context.abort_with_status(rpc_status.to_status(status))
        yield started()

    fake_gateway.script = script
    assert generate(fake_gateway, "hello") == 1
    assert "is full: queue; try again in 2.5 s" in capsys.readouterr().err


def test_no_gateway_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: nobody answers here
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert main(["generate", "hello", "--address", address]) == 1
    assert f"no gateway answers at {address}; start the services with `forerun up`" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["no such host", "http://127.0.0.1:50060"])
def test_an_address_that_is_none_is_named(capsys: pytest.CaptureFixture[str], address: str) -> None:
    assert main(["generate", "hello", "--address", address]) == 1
    assert f"no gateway answers at {address}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--raw", "--system", "x"], "leave one of them out"), (["--seed", "-1"], "a number is out of range")],
)
def test_wrong_usage_is_refused_before_the_call(
    fake_gateway: FakeGateway, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert generate(fake_gateway, "hello", *words) == 2
    assert said in capsys.readouterr().err
    assert fake_gateway.requests == []


def never_ending(go_on: threading.Event) -> Any:
    def script(request: gateway_pb2.GenerateRequest, context: Any) -> Iterator[gateway_pb2.GenerateResponse]:
        yield started()
        yield chunk("first words", 1, 2)
        go_on.wait(30)

    return script


def cli_process(fake: FakeGateway, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "forerun", "generate", *words, "--address", fake.address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_text_is_flushed_as_it_comes_and_ctrl_c_cancels_the_call(fake_gateway: FakeGateway) -> None:
    go_on = threading.Event()
    fake_gateway.script = never_ending(go_on)
    with cli_process(fake_gateway, "hello") as process:
        assert process.stdout is not None
        assert process.stdout.read(11) == "first words"  # into a pipe, while the answer goes on
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "cancelled after 2 tokens" in err
    assert "Traceback" not in err
    assert fake_gateway.cancelled.wait(10)
    go_on.set()


def test_a_reader_that_goes_away_ends_the_command_quietly(fake_gateway: FakeGateway) -> None:
    def script(request: gateway_pb2.GenerateRequest, context: Any) -> Iterator[gateway_pb2.GenerateResponse]:
        yield started()
        while context.is_active():
            yield chunk("word " * 1000, 1)

    fake_gateway.script = script
    with cli_process(fake_gateway, "hello") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(4)
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr.read() == ""
