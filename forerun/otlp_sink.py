"""A small OTLP/gRPC trace receiver inside a process, for the demo and for tests that look at real exported spans.

It keeps the newest spans in memory, up to a bound, and lets its owner wait for a condition on them. It is no
collector: it forwards, stores and samples nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

MAX_SPANS = 100_000
MAX_MESSAGE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span as it arrived. Ids are lower-case hex digits."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str  # empty: a root
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)
    kind: str = "INTERNAL"
    status: str = "UNSET"

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class OtlpSink(trace_service_pb2_grpc.TraceServiceServicer):
    """An async context: it listens inside the block, and what it received stays readable after it."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, max_spans: int = MAX_SPANS) -> None:
        self._host = host
        self._port = port
        self._spans: deque[ReceivedSpan] = deque(maxlen=max_spans)
        self._arrived = asyncio.Condition()
        self.dropped = 0  # oldest spans that made room for newer ones
        self.endpoint = ""  # for OTEL_EXPORTER_OTLP_ENDPOINT

    @property
    def spans(self) -> list[ReceivedSpan]:
        """What is held, in order of arrival."""
        return list(self._spans)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in self._spans if span.trace_id == trace_id]

    async def wait_for(self, predicate: Callable[[Sequence[ReceivedSpan]], bool], timeout_s: float = 10.0) -> None:
        """Returns once `predicate` holds for the spans. Raises TimeoutError if it does not in time."""
        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(lambda: predicate(self.spans))

    async def __aenter__(self) -> OtlpSink:
        self._server = grpc.aio.server(options=(("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port(f"{self._host}:{self._port}")
        await self._server.start()
        self.endpoint = f"http://{self._host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._server.stop(None)

    async def Export(self, request: Any, context: Any) -> Any:
        """The one method of OTLP's trace service."""
        async with self._arrived:
            for span in received_spans(request.resource_spans):
                self.dropped += len(self._spans) == self._spans.maxlen
                self._spans.append(span)
            self._arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()


def received_spans(resources: Iterable[ResourceSpans]) -> Iterable[ReceivedSpan]:
    """Flattens an export request."""
    for resource in resources:
        service = str(_plain(resource.resource.attributes).get("service.name", "unknown"))
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _received(service, span)


def _received(service: str, span: Span) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_plain(span.attributes),
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        status=Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
    )


def _plain(attributes: Iterable[Any]) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _plain(value.kvlist_value.values)
    return getattr(value, kind) if kind else None
