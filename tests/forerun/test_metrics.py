"""The page for Prometheus: where it listens, whom it asks, and what it does when nobody answers."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.request
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import Metric

from forerun import metrics
from forerun.errors import Unavailable
from forerun.metrics import LoopCollector, counter, gauge, serving

HOST = "127.0.0.1"


def page(port: int, accept: str = "*/*") -> str:
    asked = urllib.request.Request(f"http://{HOST}:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(asked, timeout=10) as found:
        return str(found.read().decode())


def test_a_scrape_asks_on_the_services_own_event_loop() -> None:
    async def run() -> tuple[str, set[str]]:
        asked_on = set()

        def read() -> Iterable[Metric]:
            asked_on.add(threading.current_thread().name)
            yield counter("things", "Things.", 3, {"kind": "a"})
            yield gauge("level", "The level.", 0.5)

        registry = CollectorRegistry()
        registry.register(LoopCollector(asyncio.get_running_loop(), read))
        assert not asked_on, "registering asks for nothing"
        with serving(registry, HOST, 0) as port:
            return await asyncio.to_thread(page, port), asked_on

    text, asked_on = asyncio.run(run())
    assert 'things_total{kind="a"} 3.0' in text and "level 0.5" in text
    assert asked_on == {threading.main_thread().name}


def test_a_busy_loop_costs_the_scrape_its_numbers_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SCRAPE_TIMEOUT_S", 0.05)
    loop = asyncio.new_event_loop()  # does not run
    registry = CollectorRegistry()
    registry.register(LoopCollector(loop, lambda: [gauge("level", "The level.", 1)]))
    try:
        with serving(registry, HOST, 0) as port:
            assert "level" not in page(port)
    finally:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_without_a_port_there_is_no_page() -> None:
    with serving(CollectorRegistry(), HOST, metrics.OFF) as port:
        assert port == metrics.OFF


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server((HOST, 0)) as taken:
        number = taken.getsockname()[1]
        page_on_it = serving(CollectorRegistry(), HOST, number)
        with pytest.raises(Unavailable, match=f"metrics_port: {HOST}:{number}"), page_on_it:
            pass


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3",
        "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.6",
        "text/plain;version=1.0.0;escaping=underscores",
    ],
)
def test_every_scraper_gets_the_same_names(accept: str) -> None:
    registry = CollectorRegistry()
    Counter("vllm:things", "Things.", ["kind"], registry=registry).labels("a").inc()
    with serving(registry, HOST, 0) as port:
        assert 'vllm:things_total{kind="a"} 1.0\n' in page(port, accept)
