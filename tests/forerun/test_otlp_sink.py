"""The trace receiver: what arrives is what was sent, within bounds, and can be waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from forerun.otlp_sink import OtlpSink, ReceivedSpan


def message(*spans: Span, service: str | None = "forerun-draft") -> Any:
    attributes = [] if service is None else [KeyValue(key="service.name", value=AnyValue(string_value=service))]
    resource_spans = ResourceSpans(resource=Resource(attributes=attributes), scope_spans=[ScopeSpans(spans=spans)])
    return trace_service_pb2.ExportTraceServiceRequest(resource_spans=[resource_spans])


def numbered(number: int) -> Span:
    return Span(name=f"span {number}", trace_id=b"t" * 16, span_id=number.to_bytes(8, "big"))


def test_a_span_arrives_whole() -> None:
    values = {
        "text": AnyValue(string_value="a"),
        "yes": AnyValue(bool_value=True),
        "count": AnyValue(int_value=-3),
        "share": AnyValue(double_value=0.5),
        "list": AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1), AnyValue(int_value=2)])),
        "map": AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key="k", value=AnyValue(string_value="v"))])),
        "nothing": AnyValue(),
    }
    span = Span(
        name="verify",
        trace_id=bytes(range(16)),
        span_id=bytes(range(8)),
        parent_span_id=bytes(range(8, 16)),
        start_time_unix_nano=10,
        end_time_unix_nano=25,
        kind=Span.SPAN_KIND_CONSUMER,
        status=Status(code=Status.STATUS_CODE_ERROR),
        attributes=[KeyValue(key=key, value=value) for key, value in values.items()],
    )

    async def test() -> list[ReceivedSpan]:
        async with OtlpSink() as sink:
            address = sink.endpoint.removeprefix("http://")
            async with grpc.aio.insecure_channel(address) as channel:
                await trace_service_pb2_grpc.TraceServiceStub(channel).Export(message(span))
        return sink.spans

    (received,) = asyncio.run(test())
    assert received == ReceivedSpan(
        service="forerun-draft",
        name="verify",
        trace_id="000102030405060708090a0b0c0d0e0f",
        span_id="0001020304050607",
        parent_id="08090a0b0c0d0e0f",
        start_ns=10,
        end_ns=25,
        attributes={
            "text": "a",
            "yes": True,
            "count": -3,
            "share": 0.5,
            "list": [1, 2],
            "map": {"k": "v"},
            "nothing": None,
        },
        kind="CONSUMER",
        status="ERROR",
    )
    assert received.duration_ns == 15


def test_the_oldest_spans_make_room_and_are_counted() -> None:
    async def test() -> None:
        sink = OtlpSink(max_spans=3)
        await sink.Export(message(*map(numbered, range(2))), None)
        assert sink.dropped == 0
        await sink.Export(message(*map(numbered, range(2, 5))), None)
        assert [span.name for span in sink.spans] == ["span 2", "span 3", "span 4"]
        assert sink.dropped == 2

    asyncio.run(test())


def test_a_condition_is_waited_for() -> None:
    async def test() -> None:
        sink = OtlpSink()
        await sink.wait_for(lambda spans: not spans)
        waiting = asyncio.ensure_future(sink.wait_for(lambda spans: len(spans) >= 2))
        await sink.Export(message(numbered(1), service=None), None)
        assert not waiting.done()
        await sink.Export(message(numbered(2)), None)
        await waiting
        assert [span.service for span in sink.trace((b"t" * 16).hex())] == ["unknown", "forerun-draft"]
        assert sink.trace("other") == []

    asyncio.run(test())


def test_waiting_has_an_end() -> None:
    async def test() -> None:
        with pytest.raises(TimeoutError):
            await OtlpSink().wait_for(bool, timeout_s=0.01)

    asyncio.run(test())
