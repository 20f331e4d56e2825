"""Where spans go: tracing as the standard OTEL_* variables want it, and an exporter that never gets in the way.

Tracing is on when an OTLP endpoint is set. Whether a request is traced is the gateway's choice (OTEL_TRACES_SAMPLER);
the services follow it. What spans there are is in `forerun.tracing`, their names in `forerun.span_attributes`.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import forerun
from forerun.logs import event
from forerun.tracing import RequestTrace, Tracing

__all__ = ["RequestTrace", "Tracing", "setup"]

logger = logging.getLogger(__name__)

QUEUE_SPANS = 65_536
EXPORT_EVERY_MS = 1_000
SHUTDOWN_S = 2.0


def setup(service_name: str) -> Tracing:
    """This process's tracing. `service_name` is "forerun-gateway", "forerun-draft" or "forerun-target"."""
    reason = _reason_against()
    if reason is not None:
        if reason:
            event(logger, "tracing_off", level=logging.WARNING, reason=reason)
        return Tracing(None, ALWAYS_OFF, Resource.get_empty())
    ours = {
        "service.name": service_name,
        "service.version": forerun.__version__,
        "service.instance.id": secrets.token_hex(8),
    }
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come last: whoever deploys knows better.
    resource = Resource.create(ours).merge(OTELResourceDetector().detect())
    sampler = TracerProvider(resource=resource, shutdown_on_exit=False).sampler  # reads OTEL_TRACES_SAMPLER
    tracing = Tracing(_Outlet(OTLPSpanExporter()), sampler, resource)
    atexit.register(tracing.shutdown)
    event(logger, "tracing_on", endpoint=_endpoint(), tls=_encrypted())
    return tracing


def _endpoint() -> str:
    return _variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or _variable("OTEL_EXPORTER_OTLP_ENDPOINT")


def _encrypted() -> bool:
    """Said at start-up since it surprises: an endpoint without http:// in front is spoken to through TLS."""
    insecure = _variable("OTEL_EXPORTER_OTLP_TRACES_INSECURE") or _variable("OTEL_EXPORTER_OTLP_INSECURE")
    if insecure and not _endpoint().startswith("https://"):
        return insecure.lower() != "true"
    return not _endpoint().startswith("http://")


def _reason_against() -> str | None:
    """Why there is no tracing: '' if it was not asked for, else what is wrong with how; None if there is."""
    protocol = _variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or _variable("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
    exporter = _variable("OTEL_TRACES_EXPORTER") or "otlp"
    disabled = _variable("OTEL_SDK_DISABLED").lower() == "true" or _variable("OTEL_TRACES_SAMPLER") == "always_off"
    if disabled or exporter == "none" or not _endpoint():
        return ""
    if exporter != "otlp":
        return f"OTEL_TRACES_EXPORTER={exporter}: only otlp and none are supported"
    if protocol != "grpc":
        return f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: only grpc is supported, usually on port 4317"
    return None


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()


class _Outlet(BatchSpanProcessor):
    """The SDK's queue and thread, with room for bursts and an end that does not wait for a receiver that is away."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = _CalmExporter(exporter)
        super().__init__(
            self._exporter,
            max_queue_size=None if "OTEL_BSP_MAX_QUEUE_SIZE" in os.environ else QUEUE_SPANS,
            schedule_delay_millis=None if "OTEL_BSP_SCHEDULE_DELAY" in os.environ else EXPORT_EVERY_MS,
        )

    def shutdown(self) -> None:
        # The queue waits for its exporter up to 30 seconds; an exporter that was shut down gives up at once.
        give_up = threading.Timer(SHUTDOWN_S, self._exporter.shutdown)
        give_up.daemon = True
        give_up.start()
        super().shutdown()  # type: ignore[no-untyped-call]
        give_up.cancel()


class _CalmExporter(SpanExporter):
    """Says once that exporting fails and once that it works again, where the SDK would say so for each batch."""

    def __init__(self, exporter: SpanExporter) -> None:
        logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").setLevel(logging.CRITICAL)
        self._exporter = exporter
        self._failing = False
        self._closed = threading.Event()
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._closed.is_set():
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        self._lost += len(spans) if failed else 0
        if failed and not self._failing:
            event(logger, "trace_export_failing", level=logging.WARNING, detail="spans are dropped meanwhile")
        elif self._failing and not failed:
            event(logger, "trace_export_works_again", lost_spans=self._lost)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True
