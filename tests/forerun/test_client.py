"""The Python client, blocking and async: what it sends, what it yields, how it ends, fails and goes on."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from forerun.client import Answer, AsyncClient, Chunk, Client, Message
from forerun.client import answer as answers
from forerun.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    ForerunError,
    Internal,
    InvalidArgument,
    Overloaded,
    Unavailable,
)
from forerun.v1 import gateway_pb2, types_pb2
from tests.fake_gateway import FakeGateway, chunk, finished, serving, started

Script = Iterator[gateway_pb2.GenerateResponse]
WORDS = ["The", " sky", " scatters", " blue", " light", "."]
WHOLE = "".join(WORDS)


class Held:
    """What reading came to: the chunks, the answer, and the error if there was one."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.answer = Answer()
        self.error: ForerunError | None = None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)


def read_blocking(address: str, prompt: Any, resume: Answer | None = None, **options: Any) -> Held:
    held = Held()
    with Client(address) as client:
        stream = client.resume(resume, **options) if resume else client.generate(prompt, **options)
        try:
            held.chunks.extend(stream)
        except ForerunError as error:
            held.error = error
        held.answer = stream.answer
    return held


def read_async(address: str, prompt: Any, resume: Answer | None = None, **options: Any) -> Held:
    async def read() -> Held:
        held = Held()
        async with AsyncClient(address) as client:
            stream = client.resume(resume, **options) if resume else client.generate(prompt, **options)
            try:
                async for one in stream:
                    held.chunks.append(one)
            except ForerunError as error:
                held.error = error
            held.answer = stream.answer
        return held

    return asyncio.run(read())


both = pytest.mark.parametrize("read", [read_blocking, read_async], ids=["blocking", "async"])
Read = Callable[..., Held]


def telling(*faults: Callable[[int, Any], None], revision: Callable[[], str] = lambda: "r1") -> Any:
    """A gateway whose tokens depend on nothing but their position. Each call has a fault, in turn: it is told how many
    messages were sent, and the call's context."""
    pending = list(faults)

    def script(request: gateway_pb2.GenerateRequest, context: Any) -> Script:
        fault = pending.pop(0) if pending else lambda sent, context: None
        fault(0, context)
        opening = started(request.seed if request.HasField("seed") else 7)
        opening.started.model_revision = revision()
        yield opening
        fault(1, context)
        for index in range(len(request.resume_token_ids), len(WORDS)):
            yield chunk(WORDS[index], 10 + index)
            fault(2 + index - len(request.resume_token_ids), context)
        yield finished(completion_tokens=len(WORDS))

    return script


def lost_after(messages: int) -> Callable[[int, Any], None]:
    def fault(sent: int, context: Any) -> None:
        if sent == messages:
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    return fault


def failing(code: grpc.StatusCode, details: str) -> Callable[[int, Any], None]:
    return lambda sent, context: context.abort(code, details)


def full(sent: int, context: Any) -> None:
    retry = any_pb2.Any()
    retry.Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=1_000_000)))
    code: int = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    context.abort_with_status(rpc_status.to_status(status_pb2.Status(code=code, message="full", details=[retry])))


# What is asked


@both
def test_a_text_is_a_user_turn_and_chunks_come_as_they_are_sent(fake_gateway: FakeGateway, read: Read) -> None:
    fake_gateway.script = telling()
    held = read(fake_gateway.address, "Why?", max_tokens=9, temperature=0)
    (sent,) = fake_gateway.requests
    turn = gateway_pb2.ChatMessage(role="user", content="Why?")
    assert sent == gateway_pb2.GenerateRequest(chat=gateway_pb2.Chat(messages=[turn]), max_tokens=9, temperature=0)
    assert held.chunks == [Chunk(word, (10 + index,)) for index, word in enumerate(WORDS)]
    assert (str(held.answer), held.answer.token_ids) == (WHOLE, list(range(10, 16)))
    assert (held.answer.started.seed, held.answer.started.prompt_token_ids) == (7, (1, 2, 3))
    assert (held.answer.finished.finish_reason, held.answer.finished.completion_tokens) == ("stop", 6)
    assert held.answer.ended
    assert held.answer.tokens_per_second == 20.0


def test_complete_gives_the_answer_at_once(fake_gateway: FakeGateway) -> None:
    async def completed() -> Answer:
        async with AsyncClient(fake_gateway.address) as client:
            return await client.complete("Why?", include_rounds=True)

    with Client(fake_gateway.address) as client:
        answer = client.complete("Why?", include_rounds=True)
    assert answer == asyncio.run(completed())
    assert [one.accepted_count for one in answer.rounds] == [1, 1, 0, 1]
    assert answer.finished.speculation.acceptance_rate == 0.6


@pytest.mark.parametrize(
    "prompt",
    [
        [("system", "Be brief."), ("user", "Why?")],
        [Message("system", "Be brief."), Message(role="user", content="Why?")],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
    ],
)
def test_a_conversation_may_be_written_in_several_ways(fake_gateway: FakeGateway, prompt: Any) -> None:
    with Client(fake_gateway.address) as client:
        client.complete(prompt)
        client.complete("Why?", system="Be brief.")
    one, other = fake_gateway.requests
    assert one == other
    assert [(turn.role, turn.content) for turn in one.chat.messages] == [("system", "Be brief."), ("user", "Why?")]


def test_token_ids_and_plain_text_go_as_they_are(fake_gateway: FakeGateway) -> None:
    with Client(fake_gateway.address) as client:
        client.complete((4, 5))
        client.complete("The capital", raw=True)
    assert list(fake_gateway.requests[0].tokens.ids) == [4, 5]
    assert fake_gateway.requests[1].text == "The capital"


def test_every_option_reaches_the_request(fake_gateway: FakeGateway) -> None:
    same: dict[str, Any] = {
        "model": "m", "parse_special_tokens": True, "max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_k": 3,
        "top_p": 0.75, "min_p": 0.25, "seed": 2**64 - 1, "presence_penalty": 1.0, "frequency_penalty": -1.0,
        "repetition_penalty": 1.5, "logit_bias": {4: -100.0}, "include_stop": True, "stop_token_ids": [5],
        "ignore_eos": True, "logprobs": 2, "include_rounds": True,
    }  # fmt: skip
    with Client(fake_gateway.address) as client:
        client.complete("x", raw=True, stop="\n", speculate=True, draft_length=6, window=12, **same)
        client.complete("x", raw=True, stop=["a", "b"], speculate=None, top_k=None)
    first, second = fake_gateway.requests
    speculation = gateway_pb2.Speculation(enabled=True, draft_length=6, window=12)
    assert first == gateway_pb2.GenerateRequest(text="x", stop=["\n"], speculation=speculation, **same)
    assert second == gateway_pb2.GenerateRequest(text="x", stop=["a", "b"])
    left_out = {field.name for field in gateway_pb2.GenerateRequest.DESCRIPTOR.fields} - set(same)
    assert left_out == {"text", "chat", "tokens", "stop", "speculation", "resume_token_ids"}, "a new field: an option?"


def test_what_cannot_be_sent_is_refused_by_name(fake_gateway: FakeGateway) -> None:
    client: Any = Client(fake_gateway.address)
    with client:
        with pytest.raises(TypeError, match="no option 'max_token'; did you mean 'max_tokens'"):
            client.generate("x", max_token=3)
        for options in ({"seed": -1}, {"max_tokens": "many"}, {"stop": 3}, {"logit_bias": {-1: 1.0}}, {"system": 3}):
            (name,) = options
            with pytest.raises(InvalidArgument) as refused:
                client.generate("x", **options)
            assert refused.value.field == (name if name != "system" else "prompt")
        for prompt in ([{"role": "user"}], ["hello"], [-1], [1.5]):
            with pytest.raises(InvalidArgument, match="prompt"):
                client.generate(prompt)
        with pytest.raises(InvalidArgument, match="system: needs turns"):
            client.generate("x", raw=True, system="y")
    assert fake_gateway.requests == []


def test_the_events_mirror_the_protocol() -> None:
    for kind in (answers.Started, answers.Round, answers.Chunk, answers.SpeculationUsage, answers.Timing):
        descriptor = getattr(gateway_pb2, kind.__name__).DESCRIPTOR
        assert set(kind.__dataclass_fields__) == {field.name for field in descriptor.fields}, (
            "a new field in the proto?"
        )
    assert set(answers.Finished.__dataclass_fields__) == set(gateway_pb2.Finished.DESCRIPTOR.fields_by_name)


def test_logprobs_are_pairs(fake_gateway: FakeGateway) -> None:
    entry = types_pb2.TokenLogprobs(logprob=-0.5, top_token_ids=[4, 5], top_logprobs=[-0.5, -1.0])
    fake_gateway.script = lambda request, context: iter(
        [started(), chunk("hi", 4, logprobs=[entry], token_texts=["hi"]), finished()]
    )
    with Client(fake_gateway.address) as client:
        (got,) = client.complete("x", logprobs=2).logprobs
    assert (got.logprob, got.top) == (-0.5, ((4, -0.5), (5, -1.0)))


# How it fails


@both
@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "top_p: is 7", InvalidArgument),
        (grpc.StatusCode.UNAVAILABLE, "no target for 30 s", Unavailable),
        (grpc.StatusCode.FAILED_PRECONDITION, "no fit", FailedPrecondition),
        (grpc.StatusCode.INTERNAL, "oops", Internal),
        (grpc.StatusCode.UNIMPLEMENTED, "what?", ForerunError),
    ],
)
def test_a_status_is_one_of_our_errors(
    fake_gateway: FakeGateway, read: Read, code: grpc.StatusCode, details: str, kind: type[ForerunError]
) -> None:
    fake_gateway.script = telling(failing(code, details))
    error = read(fake_gateway.address, "x").error
    assert type(error) is kind
    assert (error.message, error.status) == (details, code)
    assert isinstance(error.__cause__, grpc.RpcError)
    assert getattr(error, "field", "top_p") == "top_p"


@both
def test_a_full_gateway_says_when_to_come_back(fake_gateway: FakeGateway, read: Read) -> None:
    fake_gateway.script = telling(full)
    error = read(fake_gateway.address, "x").error
    assert isinstance(error, Overloaded) and error.retry_after_s == 0.001


@both
def test_nobody_there_is_unavailable(read: Read) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert isinstance(read(f"127.0.0.1:{unused.getsockname()[1]}", "x").error, Unavailable)


@both
def test_the_deadline_is_for_the_whole_answer(fake_gateway: FakeGateway, read: Read) -> None:
    go_on = threading.Event()
    fake_gateway.script = telling(lambda sent, context: None if sent < 3 else go_on.wait(30) and None)
    held = read(fake_gateway.address, "x", timeout=0.4, retries=5)
    assert isinstance(held.error, DeadlineExceeded)
    assert held.text == "The sky"
    assert 0 < fake_gateway.time_remaining_s < 0.5
    go_on.set()


@both
def test_an_answer_without_an_end_is_an_error(fake_gateway: FakeGateway, read: Read) -> None:
    fake_gateway.script = lambda request, context: iter([started(), chunk("half", 1)])
    held = read(fake_gateway.address, "x")
    assert isinstance(held.error, Internal) and held.text == "half"
    assert not held.answer.ended


@both
def test_an_event_of_a_later_protocol_is_passed_over(fake_gateway: FakeGateway, read: Read) -> None:
    fake_gateway.script = lambda request, context: iter([gateway_pb2.GenerateResponse(), started(), finished()])
    assert read(fake_gateway.address, "x").answer.ended


def test_status_is_the_gateways_own_message(fake_gateway: FakeGateway) -> None:
    async def status() -> gateway_pb2.GetStatusResponse:
        async with AsyncClient(fake_gateway.address) as client:
            return await client.status()

    async def no_status() -> None:
        async with AsyncClient("no such host") as client:
            await client.status()

    with Client(fake_gateway.address) as client:
        assert client.status() == asyncio.run(status())
        assert client.status().targets[0].info.model_id == "large"
    with pytest.raises(Unavailable):
        asyncio.run(no_status())
    with Client("no such host") as client, pytest.raises(Unavailable):
        client.status()


# How it goes on


@both
@pytest.mark.parametrize("messages", range(len(WORDS) + 2))
def test_a_gateway_lost_at_any_message_is_asked_for_the_rest(
    fake_gateway: FakeGateway, read: Read, messages: int
) -> None:
    fake_gateway.script = telling(lost_after(messages))
    held = read(fake_gateway.address, "Why?", retries=1, max_tokens=9, seed=3)
    assert (held.error, held.text, held.answer.text) == (None, WHOLE, WHOLE)
    assert held.answer.token_ids == list(range(10, 16))
    first, again = fake_gateway.requests
    if messages == 0:
        assert again == first
    else:
        ids = list(range(10, 10 + messages - 1))
        assert (list(again.resume_token_ids), list(again.tokens.ids)) == (ids, [1, 2, 3])
        assert (again.seed, again.max_tokens) == (3, 9)


def test_a_random_seed_is_kept_for_the_rest(fake_gateway: FakeGateway) -> None:
    fake_gateway.script = telling(lost_after(2), lost_after(2))
    assert read_blocking(fake_gateway.address, "Why?", retries=2).text == WHOLE
    assert [request.HasField("seed") for request in fake_gateway.requests] == [False, True, True]
    assert {request.seed for request in fake_gateway.requests[1:]} == {7}


@both
def test_a_gateway_whose_process_dies_is_replaced_by_another(fake_gateway: FakeGateway, read: Read) -> None:
    other = FakeGateway(script=telling())
    with serving(other), serving(dying := FakeGateway()) as server:
        dying.script = telling(lambda sent, context: None if sent < 4 else server.stop(None) and None)
        held = read(f"ipv4:{dying.address},{other.address}", "Why?", retries=3)
    assert (held.error, held.text) == (None, WHOLE)
    assert len(dying.requests) == len(other.requests) == 1


@both
def test_retries_are_counted(fake_gateway: FakeGateway, read: Read) -> None:
    fake_gateway.script = telling(full, lost_after(2), lost_after(2))
    held = read(fake_gateway.address, "Why?", retries=2)
    assert isinstance(held.error, Unavailable)
    assert held.text == "The sky"
    assert len(fake_gateway.requests) == 3


@both
def test_a_refusal_is_not_tried_again(fake_gateway: FakeGateway, read: Read) -> None:
    fake_gateway.script = telling(failing(grpc.StatusCode.INVALID_ARGUMENT, "top_p: is 7"))
    assert isinstance(read(fake_gateway.address, "x", retries=9).error, InvalidArgument)
    assert len(fake_gateway.requests) == 1


@both
def test_a_broken_answer_can_be_resumed_later(fake_gateway: FakeGateway, read: Read) -> None:
    fake_gateway.script = telling(lost_after(3))
    held = read(fake_gateway.address, "Why?")
    assert isinstance(held.error, Unavailable) and held.text == "The sky"
    rest = read(fake_gateway.address, None, resume=held.answer)
    assert (rest.text, rest.answer.text) == (" scatters blue light.", WHOLE)
    assert held.answer.text == "The sky", "what one had stays as it was"


@both
def test_another_model_cannot_go_on(fake_gateway: FakeGateway, read: Read) -> None:
    revisions = iter(["r1", "r2"])
    fake_gateway.script = telling(lost_after(3), revision=lambda: next(revisions))
    held = read(fake_gateway.address, "Why?", retries=1)
    assert isinstance(held.error, FailedPrecondition) and held.text == "The sky"


# How it is cancelled


def endless(request: gateway_pb2.GenerateRequest, context: Any) -> Script:
    over = threading.Event()
    context.add_callback(over.set)
    yield started()
    yield chunk("more ", 1)
    over.wait(30)


def test_leaving_the_block_or_closing_or_dropping_cancels(fake_gateway: FakeGateway) -> None:
    fake_gateway.script = endless
    with Client(fake_gateway.address) as client:
        with client.generate("x") as stream:
            assert next(stream).text == "more "
        assert fake_gateway.cancelled.wait(10)
        assert list(stream) == []

        fake_gateway.cancelled.clear()
        for one in client.generate("x"):
            assert one.text == "more "
            break
        gc.collect()
        assert fake_gateway.cancelled.wait(10)


def test_another_thread_may_close_a_stream_that_waits(fake_gateway: FakeGateway) -> None:
    go_on = threading.Event()
    fake_gateway.script = telling(lambda sent, context: None if sent < 3 else go_on.wait(30) and None)
    with Client(fake_gateway.address) as client:
        stream = client.generate("x")
        read = [next(stream), next(stream)]
        closer = threading.Timer(0.05, stream.close)
        closer.start()
        assert list(stream) == []  # waits for the third
        closer.join()
        assert "".join(map(str, read)) == stream.text == "The sky"
        assert fake_gateway.cancelled.wait(10)
    go_on.set()


def test_async_leaving_or_dropping_or_a_cancelled_task_cancels(fake_gateway: FakeGateway) -> None:
    fake_gateway.script = endless

    async def freed() -> None:
        assert await asyncio.to_thread(fake_gateway.cancelled.wait, 10)
        fake_gateway.cancelled.clear()

    async def consume(client: AsyncClient, reading: asyncio.Event) -> None:
        async for _ in client.generate("x"):
            reading.set()

    async def test() -> None:
        async with AsyncClient(fake_gateway.address) as client:
            async with client.generate("x") as stream:
                assert (await anext(stream)).text == "more "
            await freed()
            async for _ in client.generate("x"):
                break
            gc.collect()
            await freed()
            reading = asyncio.Event()
            task = asyncio.create_task(consume(client, reading))
            await reading.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await freed()

    asyncio.run(test())


def test_an_async_client_may_be_made_before_its_loop_and_runs_answers_at_once(fake_gateway: FakeGateway) -> None:
    client = AsyncClient(fake_gateway.address)

    async def test() -> list[Answer]:
        async with client:
            return await asyncio.gather(*(client.complete(f"{number}") for number in range(8)))

    assert [answer.ended for answer in asyncio.run(test())] == [True] * 8
