"""Tracing end to end: one request is one trace over three services, and its spans add up to its usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from forerun import span_attributes, telemetry
from forerun.otlp_sink import OtlpSink, ReceivedSpan
from tests.trio import MODEL, NGRAM, NONE, RIGHT, Answer, Pair, Trio, read, request, trio

METHOD = "forerun.v1.GatewayService/Generate"
GATEWAY, DRAFT, TARGET = "forerun-gateway", "forerun-draft", "forerun-target"
CLIENT_TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PROMPT = [5, 6, 7, 8]


@asynccontextmanager
async def traced(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, kind: str = MODEL, **settings: Any
) -> AsyncIterator[tuple[Trio, OtlpSink, Callable[[], Any]]]:
    """A trio whose services export to a sink, each by itself; the function has them send what they hold."""
    async with OtlpSink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        tracings = [telemetry.setup(name) for name in (TARGET, DRAFT, GATEWAY)]
        nodes = [{"tracing": tracing} for tracing in tracings]

        async def flush() -> None:
            await asyncio.gather(*(asyncio.to_thread(tracing.flush) for tracing in tracings))

        async with trio(pair, kind, target=nodes[0], draft_settings=nodes[1], gateway=nodes[2] | settings) as running:
            yield running, sink, flush
        await asyncio.gather(*(asyncio.to_thread(tracing.shutdown) for tracing in tracings))


async def trace_of(answer: Answer, sink: OtlpSink, flush: Callable[[], Any]) -> list[ReceivedSpan]:
    """The request's whole trace. The server span is written last."""
    await flush()
    await sink.wait_for(lambda spans: any(s.name == METHOD and s.trace_id == answer.started.trace_id for s in spans))
    await flush()
    return sink.trace(answer.started.trace_id)


def by_name(spans: Sequence[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    return sorted((span for span in spans if span.name == name), key=lambda span: span.start_ns)


def total(spans: Sequence[ReceivedSpan], attribute: str) -> int:
    return sum(span.attributes[attribute] for span in spans)


def check_tree(spans: list[ReceivedSpan], answer: Answer, drafting: bool) -> None:
    """Server span, rounds under it, and in their own services `draft` and `verify` under the rounds."""
    (server,) = by_name(spans, METHOD)
    rounds, drafts, verifies = (by_name(spans, name) for name in ("round", "draft", "verify"))
    assert server.service == GATEWAY and server.kind == "SERVER"
    assert {span.service for span in rounds} == {GATEWAY}
    assert {span.service for span in verifies} == {TARGET}
    assert {span.service for span in drafts} == ({DRAFT} if drafting else set())
    assert {span.parent_id for span in rounds} == {server.span_id}
    round_of = {span.span_id: span for span in rounds}
    assert len(round_of) == len(rounds) == len(verifies) == answer.usage.rounds
    assert [span.attributes[span_attributes.ROUND_INDEX] for span in rounds] == list(range(len(rounds)))
    for span in verifies:
        above = round_of[span.parent_id]
        for name in ("ROUND_INDEX", "DRAFTED", "ACCEPTED", "COMMITTED", "EPOCH", "OUTCOME"):
            attribute = getattr(span_attributes, name)
            assert span.attributes[attribute] == above.attributes[attribute], name
    orphans = [span for span in drafts if span.parent_id not in round_of]
    assert len(orphans) <= 1, "only for a round that the end forestalled"
    for span in [span for span in drafts if span not in orphans]:
        above = round_of[span.parent_id]
        assert span.attributes[span_attributes.ROUND_INDEX] == above.attributes[span_attributes.ROUND_INDEX]
    drafted_for = {span.parent_id for span in drafts}
    assert not drafting or any(span.span_id in drafted_for for span in rounds)
    assert {span.trace_id for span in spans} == {answer.started.trace_id}
    assert all(span.start_ns <= span.end_ns for span in spans)


def check_sums(spans: list[ReceivedSpan], answer: Answer) -> None:
    """What the spans add up to is what the usage block says."""
    usage = answer.usage
    for name in ("round", "verify"):
        each = by_name(spans, name)
        assert total(each, span_attributes.DRAFTED) == usage.drafted_tokens
        assert total(each, span_attributes.ACCEPTED) == usage.accepted_tokens
        assert total(each, span_attributes.COMMITTED) == len(answer.ids)
    (server,) = by_name(spans, METHOD)
    assert answer.finished is not None
    assert server.attributes[span_attributes.REQUEST_ROUNDS] == usage.rounds
    assert server.attributes[span_attributes.REQUEST_DRAFTED] == usage.drafted_tokens
    assert server.attributes[span_attributes.REQUEST_ACCEPTED] == usage.accepted_tokens
    assert server.attributes[span_attributes.INPUT_TOKENS] == answer.finished.prompt_tokens
    assert server.attributes[span_attributes.OUTPUT_TOKENS] == answer.finished.completion_tokens
    assert server.attributes[span_attributes.REQUEST_ID] == answer.started.request_id
    assert server.attributes[span_attributes.RPC_STATUS] == "OK"


@pytest.mark.parametrize(("kind", "window"), [(MODEL, 4), (MODEL, 12), (NGRAM, 4), (RIGHT, 4), (NONE, 4)])
def test_one_request_is_one_trace(
    loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, pair: Pair, kind: str, window: int
) -> None:
    async def test() -> None:
        async with traced(monkeypatch, pair, kind) as (running, sink, flush):
            prompt = PROMPT * 4
            plain = await running.generate(prompt, 0, max_tokens=24, ignore_eos=True)
            running.teach(prompt, plain.ids)
            wish = {"draft_length": 4, "window": window}
            answer = await running.generate(prompt, speculation=wish, max_tokens=24, ignore_eos=True)
            assert answer.result == plain.result
            spans = await trace_of(answer, sink, flush)
            check_tree(spans, answer, drafting=kind != NONE)
            check_sums(spans, answer)
            outcomes = {span.attributes[span_attributes.OUTCOME] for span in by_name(spans, "round")}
            assert kind != NONE or outcomes == {"plain"}
            assert kind != RIGHT or "all_accepted" in outcomes
            assert kind != MODEL or any(outcome.startswith("rejected_at_") for outcome in outcomes)

    loop.run(test())


def test_each_request_has_a_trace_of_its_own(loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    async def test() -> None:
        async with traced(monkeypatch, pair) as (running, sink, flush):
            calls = [running.generate([5, 6, number], 3, max_tokens=16) for number in range(5)]
            answers = await asyncio.gather(*calls)
            assert len({answer.started.trace_id for answer in answers}) == 5
            for answer in answers:
                spans = await trace_of(answer, sink, flush)
                check_tree(spans, answer, drafting=True)
                check_sums(spans, answer)

    loop.run(test())


def test_chunks_of_a_prompt_are_seen(loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    async def test() -> None:
        async with OtlpSink() as sink:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
            target, front = telemetry.setup(TARGET), telemetry.setup(GATEWAY)
            chunked = {"tracing": target, "max_batch_tokens": 16}
            async with trio(pair, NONE, target=chunked, gateway={"tracing": front}) as running:
                answer = await running.generate([5] * 100, 0, max_tokens=2)
            for tracing in (target, front):
                await asyncio.to_thread(tracing.shutdown)
            chunks = by_name(sink.trace(answer.started.trace_id), "prefill")
            assert len(chunks) == 6  # the seventh is the first round
            assert total(chunks, span_attributes.TOKENS) == 96

    loop.run(test())


def test_clients_own_trace_goes_on(loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    async def test() -> None:
        async with traced(monkeypatch, pair) as (running, sink, flush):
            metadata = (("traceparent", f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"),)
            answer = await read(running.stub.Generate(request(PROMPT, 3, max_tokens=8), metadata=metadata))
            assert answer.started.trace_id == CLIENT_TRACE
            spans = await trace_of(answer, sink, flush)
            assert by_name(spans, METHOD)[0].parent_id == CLIENT_SPAN
            check_tree(spans, answer, drafting=True)

    loop.run(test())


def test_refused_and_cancelled_requests_are_seen(
    loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    async def test() -> None:
        async with traced(monkeypatch, pair, credit_tokens=4) as (running, sink, flush):
            with pytest.raises(grpc.aio.AioRpcError):
                await running.generate(PROMPT, top_p=2.0)
            call = running.stub.Generate(request(PROMPT, 3, max_tokens=500, ignore_eos=True, logprobs=20))
            await call.read()
            await call.read()
            call.cancel()
            await running.wait_until_idle()
            await flush()
            await sink.wait_for(lambda spans: len(by_name(spans, METHOD)) == 2)
            refused, cancelled = by_name(sink.spans, METHOD)
            assert refused.attributes[span_attributes.RPC_STATUS] == "INVALID_ARGUMENT"
            assert cancelled.attributes[span_attributes.RPC_STATUS] == "CANCELLED"
            assert refused.status == cancelled.status == "UNSET", "neither is the server's fault"

    loop.run(test())


def test_nothing_is_exported_when_tracing_is_off(
    loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    async def test() -> None:
        async with OtlpSink() as sink:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
            monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
            async with trio(pair, MODEL) as running:
                answer = await running.generate(PROMPT, 3, max_tokens=16)
                assert answer.usage.drafted_tokens > 0
                assert answer.started.trace_id == ""
                sessions = [*running.target.parts.engine.sessions, *running.draft.parts.engine.sessions]
                assert not any(session.traceparent for session in sessions)
        assert sink.spans == []

    loop.run(test())


def test_gateway_that_does_not_trace_silences_services_that_would(
    loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    async def test() -> None:
        async with OtlpSink() as sink:
            silent = telemetry.setup(GATEWAY)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
            target = telemetry.setup(TARGET)
            async with trio(pair, NONE, target={"tracing": target}, gateway={"tracing": silent}) as running:
                await running.generate(PROMPT, 0, max_tokens=4)
            await asyncio.to_thread(target.shutdown)
        assert sink.spans == []

    loop.run(test())
