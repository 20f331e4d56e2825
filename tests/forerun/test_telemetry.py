"""Tracing end to end: several services' spans in one tree, a receiver that is away, and no cost when it is off."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from forerun import span_attributes, telemetry
from forerun.otlp_sink import OtlpSink, ReceivedSpan
from forerun.trace_context import TraceContext, new_span_id, new_trace_id, parse_traceparent, round_span_id

METHOD = "forerun.v1.GatewayService/Generate"
CLIENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, sampled=True)
DEAD = "http://127.0.0.1:9"

ids = st.integers(1, 2**64 - 1)
contexts = st.builds(TraceContext, st.integers(1, 2**128 - 1), ids, st.booleans())


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT", "PROTOCOL", "TRACES_PROTOCOL", "INSECURE", "TRACES_INSECURE"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    for name in ("SDK_DISABLED", "TRACES_EXPORTER", "TRACES_SAMPLER", "SERVICE_NAME", "RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)


def received(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[None]]) -> list[ReceivedSpan]:
    """What a receiver got of what `act` wrote."""

    async def test() -> list[ReceivedSpan]:
        async with OtlpSink() as sink:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
            await act()
        return sink.spans

    return asyncio.run(test())


async def end(*tracings: telemetry.Tracing) -> None:
    for tracing in tracings:
        await asyncio.to_thread(tracing.shutdown)


def exporter_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "Otel" in thread.name]


# Ids


@given(contexts)
def test_a_traceparent_comes_back_as_it_went(context: TraceContext) -> None:
    assert parse_traceparent(context.traceparent) == context


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        CLIENT.traceparent.upper(),
        CLIENT.traceparent + "0",
        CLIENT.traceparent + "-more",
        CLIENT.traceparent + "\n",
        "ff" + CLIENT.traceparent[2:],
        f"00-{0:032x}-{1:016x}-01",
        f"00-{1:032x}-{0:016x}-01",
        f"00-{1:031x}-{1:016x}-01",
        f"00-{'٣' * 32}-{1:016x}-01",
    ],
)
def test_what_is_no_traceparent_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


def test_later_versions_and_flags_are_read_as_far_as_they_are_known() -> None:
    later = "cc" + CLIENT.traceparent[2:-2] + "ff-what-comes-next"
    assert parse_traceparent(later) == CLIENT


@given(contexts, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_rounds_id_follows_from_what_all_services_know(request: TraceContext, session: int, index: int) -> None:
    span_id = round_span_id(request, session, index)
    assert 0 < span_id < 2**64
    same = parse_traceparent(request.traceparent)
    assert same and round_span_id(same, session, index) == span_id
    others = [
        round_span_id(request._replace(trace_id=request.trace_id ^ 1), session, index),
        round_span_id(request._replace(span_id=request.span_id ^ 1), session, index),
        round_span_id(request, session ^ 1, index),
        round_span_id(request, session, index + 1),
    ]
    assert span_id not in others


def test_a_rounds_id_never_changes_between_versions() -> None:
    assert f"{round_span_id(CLIENT, 7, 3):016x}" == "02911df9865a0774"


def test_ids_do_not_repeat_when_somebody_seeds_random() -> None:
    drawn = []
    for _ in range(2):
        random.seed(0)
        drawn += [new_trace_id(), new_span_id()]
    assert len(set(drawn)) == 4


# Trees


def test_three_services_spans_form_one_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    async def act() -> None:
        gateway, draft, target = (telemetry.setup(f"forerun-{name}") for name in ("gateway", "draft", "target"))
        request = gateway.start_request([("traceparent", CLIENT.traceparent)], METHOD, start_ns=100)
        # The services work for a round, and report it, before the gateway knows that there is one.
        proposed = span_attributes.draft_attributes(0, start_position=5, drafted=4, epoch=2)
        draft.round_child(request.traceparent, 7, 0, span_attributes.DRAFT, 110, 120, proposed)
        verdict = span_attributes.round_attributes(
            0, start_position=5, drafted=4, accepted=2, committed=3, epoch=2, wait_ns=1_500_000
        )
        target.round_child(request.traceparent, 7, 0, span_attributes.VERIFY, 120, 140, verdict)
        request.round(7, 0, 105, 150, verdict)
        request.child(span_attributes.QUEUE, 100, 104)
        usage = span_attributes.usage_attributes(input_tokens=5, output_tokens=3, finish_reason="stop")
        request.end(grpc.StatusCode.OK, usage, end_ns=160)
        request.end(grpc.StatusCode.INTERNAL)
        seen["trace_id"] = request.trace_id
        await end(gateway, draft, target)

    spans = {span.name: span for span in received(monkeypatch, act)}
    assert set(spans) == {METHOD, "round", "queue", "draft", "verify"}
    assert {span.trace_id for span in spans.values()} == {seen["trace_id"], f"{CLIENT.trace_id:032x}"}
    server, ended, verify = spans[METHOD], spans["round"], spans["verify"]
    assert server.parent_id == f"{CLIENT.span_id:016x}"
    assert ended.parent_id == spans["queue"].parent_id == server.span_id
    assert verify.parent_id == spans["draft"].parent_id == ended.span_id
    services = {name: span.service for name, span in spans.items()}
    assert services["verify"] == "forerun-target" and services["draft"] == "forerun-draft"
    assert {services[name] for name in ("round", "queue", METHOD)} == {"forerun-gateway"}
    assert (server.start_ns, server.end_ns, verify.start_ns, verify.end_ns) == (100, 160, 120, 140)
    assert [server.kind, ended.kind, verify.kind] == ["SERVER", "INTERNAL", "CONSUMER"]
    assert verify.attributes == ended.attributes
    assert ended.attributes["forerun.outcome"] == "rejected_at_2"
    assert ended.attributes["forerun.wait_ms"] == 1.5
    assert server.attributes["rpc.status_code"] == "OK"
    assert server.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert [name for name, span in spans.items() if "gen_ai.usage.output_tokens" in span.attributes] == [METHOD]


def test_a_request_without_a_client_trace_is_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act() -> None:
        tracing = telemetry.setup("forerun-gateway")
        for metadata in (None, [("traceparent", "nonsense")], [("traceparent", CLIENT.traceparent)] * 2):
            tracing.start_request(metadata, METHOD).end(grpc.StatusCode.OK)
        await end(tracing)

    spans = received(monkeypatch, act)
    assert [span.parent_id for span in spans] == ["", "", ""]
    assert len({span.trace_id for span in spans}) == 3


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_only_the_servers_own_faults_are_errors(code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[ReadableSpan] = []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", DEAD)
    monkeypatch.setattr(telemetry._Outlet, "on_end", lambda self, span: written.append(span))
    tracing = telemetry.setup("forerun-gateway")
    tracing.start_request(None, METHOD).end(code)
    tracing.shutdown()
    (span,) = written
    faults = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
    assert (span.status.status_code.name == "ERROR") is (code.name in faults)
    assert span.attributes is not None and span.attributes["rpc.status_code"] == code.name
    assert ("error.type" in span.attributes) is (code.name in faults)


def test_what_the_client_or_the_sampler_does_not_want_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act() -> None:
        tracing = telemetry.setup("forerun-gateway")
        request = tracing.start_request([("traceparent", CLIENT._replace(sampled=False).traceparent)], METHOD)
        assert (request.traceparent, request.trace_id) == ("", "")
        request.round(1, 0, 1, 2)
        request.end(grpc.StatusCode.OK)
        tracing.round_child(CLIENT._replace(sampled=False).traceparent, 1, 0, "verify", 1, 2)
        tracing.round_child("nonsense", 1, 0, "verify", 1, 2)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
        rarely = telemetry.setup("forerun-gateway")
        assert rarely.start_request(None, METHOD).traceparent == ""
        assert rarely.start_request([("traceparent", CLIENT.traceparent)], METHOD).traceparent != ""
        await end(tracing, rarely)

    assert received(monkeypatch, act) == []


def test_whoever_deploys_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-target")

    async def act() -> None:
        tracing = telemetry.setup("forerun-target")
        tracing.round_child(CLIENT.traceparent, 1, 0, "verify", 1, 2)
        await asyncio.to_thread(tracing.flush)
        await end(tracing)

    assert [span.service for span in received(monkeypatch, act)] == ["my-target"]


# On, off, and away


@pytest.mark.parametrize(
    ("variables", "warned"),
    [
        ({}, False),
        ({"EXPORTER_OTLP_ENDPOINT": DEAD, "SDK_DISABLED": "TRUE"}, False),
        ({"EXPORTER_OTLP_ENDPOINT": DEAD, "TRACES_EXPORTER": "none"}, False),
        ({"EXPORTER_OTLP_ENDPOINT": DEAD, "TRACES_SAMPLER": "always_off"}, False),
        ({"EXPORTER_OTLP_ENDPOINT": DEAD, "TRACES_EXPORTER": "console"}, True),
        ({"EXPORTER_OTLP_ENDPOINT": DEAD, "EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
    ],
)
def test_off_is_free(
    variables: dict[str, str], warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_{name}", value)
    threads = threading.enumerate()
    tracing = telemetry.setup("forerun-gateway")
    assert not tracing.enabled
    request = tracing.start_request([("traceparent", CLIENT.traceparent)], METHOD)
    assert request is tracing.start_request(None, METHOD), "one object stands for all untraced requests"
    assert (request.traceparent, request.trace_id) == ("", "")
    request.child("queue", 1, 2)
    request.round(1, 0, 1, 2)
    request.end(grpc.StatusCode.OK)
    tracing.round_child(CLIENT.traceparent, 1, 0, "verify", 1, 2)
    tracing.flush()
    tracing.shutdown()
    assert threading.enumerate() == threads
    assert [record.getMessage() for record in caplog.records] == ["tracing_off"] * warned


@pytest.mark.parametrize(
    ("endpoint", "insecure", "encrypted"),
    [
        ("http://a:1", None, False),
        ("http://a:1", "false", True),
        ("https://a:1", "true", True),
        ("a:1", None, True),
        ("a:1", "true", False),
    ],
)
def test_tls_is_what_the_exporter_makes_of_the_endpoint(
    endpoint: str, insecure: str | None, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    if insecure is not None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", insecure)
    exporter = OTLPSpanExporter()
    assert telemetry._encrypted() is (not exporter._insecure) is encrypted
    exporter.shutdown()


def test_a_receiver_that_is_away_neither_blocks_nor_hangs_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", DEAD)
    monkeypatch.setattr(telemetry, "SHUTDOWN_S", 0.3)
    tracing = telemetry.setup("forerun-target")
    begin = time.monotonic()
    for index in range(2_000):
        tracing.round_child(CLIENT.traceparent, 1, index, "verify", 1, 2)
    assert time.monotonic() - begin < 2.0
    begin = time.monotonic()
    tracing.shutdown()
    tracing.shutdown()
    assert time.monotonic() - begin < 3.0
    tracing.round_child(CLIENT.traceparent, 1, 0, "verify", 1, 2)
    assert exporter_threads() == []
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 1


def test_failing_exports_are_said_once_and_so_is_their_end(caplog: pytest.LogCaptureFixture) -> None:
    class Receiver(SpanExporter):
        works = False

        def export(self, spans: Sequence[Any]) -> SpanExportResult:
            return SpanExportResult.SUCCESS if self.works else SpanExportResult.FAILURE

    caplog.set_level(logging.INFO)
    receiver = Receiver()
    exporter = telemetry._CalmExporter(receiver)
    for works in (False, False, False, True, True):
        receiver.works = works
        exporter.export(())
    exporter.shutdown()
    assert caplog.messages == ["trace_export_failing", "trace_export_works_again"]


# Names


@pytest.mark.parametrize(
    ("drafted", "accepted", "outcome"),
    [(0, 0, "plain"), (4, 4, "all_accepted"), (4, 0, "rejected_at_0"), (4, 3, "rejected_at_3")],
)
def test_the_outcome_of_a_round_has_a_name(drafted: int, accepted: int, outcome: str) -> None:
    assert span_attributes.outcome(drafted, accepted) == outcome


def test_a_seed_of_64_bits_fits_into_an_attribute() -> None:
    attributes = span_attributes.inference_attributes(
        "r", "m", chat=True, max_tokens=1, temperature=0.0, top_k=5, seed=2**64 - 1
    )
    assert attributes["gen_ai.request.seed"] == -1
    assert attributes["gen_ai.request.top_k"] == 5
