"""`/metrics` for Prometheus: a page over HTTP with what a service counts, and the buckets that all of them use.

A scrape comes on a thread of its own and asks on the service's event loop, so that the numbers of one page belong
together and nothing that is counted needs a lock.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forerun.errors import Unavailable
from forerun.logs import event

logger = logging.getLogger(__name__)

OFF = -1  # as a port
SCRAPE_TIMEOUT_S = 2.0  # that a busy event loop may take
OPENMETRICS = "application/openmetrics-text"
NAMES_AS_THEY_ARE = f"{OPENMETRICS}; version=1.0.0; escaping=allow-utf-8"

# Seconds. Those of OpenTelemetry's gen_ai metrics, with finer ones below 10 ms, where a token of a small model lies.
LATENCY_BUCKETS = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24,
    20.48, 40.96, 81.92,
)  # fmt: skip

Read = Callable[[], Iterable[Metric]]


class LoopCollector(Collector):
    """Metrics that `read` makes, on an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read: Read) -> None:
        self._loop = loop
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: registering asks for no numbers."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The numbers now; none if the loop is too busy to say, which is logged."""
        asked = asyncio.run_coroutine_threadsafe(self._on_loop(), self._loop)
        try:
            return asked.result(SCRAPE_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            asked.cancel()
            event(logger, "scrape_failed", level=logging.WARNING, reason=f"no answer for {SCRAPE_TIMEOUT_S:g} s")
            return ()

    async def _on_loop(self) -> list[Metric]:
        return list(self._read())


@contextmanager
def serving(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serves the page for as long as the block lasts; gives its port, OFF if there is none.

    Raises Unavailable if the port is taken.
    """
    if port == OFF:
        yield OFF
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise Unavailable(f"metrics_port: {host}:{port} cannot be listened on: {error.strerror or error}") from error
    app = server.get_app()
    assert app is not None
    server.set_app(_with_lasting_names(app))
    event(logger, "metrics", address=f"{host}:{server.server_port}")
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(SCRAPE_TIMEOUT_S)


def _with_lasting_names(page: WSGIApplication) -> WSGIApplication:
    """The page with the same names for every scraper.

    prometheus_client writes `vllm_` for `vllm:` unless it is told that names may have any character, which Prometheus 2
    never says. A colon was always allowed.
    """

    def app(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        environ["HTTP_ACCEPT"] = NAMES_AS_THEY_ARE if OPENMETRICS in environ.get("HTTP_ACCEPT", "") else ""
        return page(environ, start_response)

    return app


def counter(name: str, help: str, value: float, labels: dict[str, str] | None = None) -> Metric:
    """One counter; `_total` is added to its name on the page."""
    labels = labels or {}
    family = CounterMetricFamily(name, help, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def gauge(name: str, help: str, value: float, labels: dict[str, str] | None = None) -> Metric:
    """One gauge."""
    labels = labels or {}
    family = GaugeMetricFamily(name, help, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


__all__ = ["LATENCY_BUCKETS", "OFF", "LoopCollector", "counter", "gauge", "serving"]
