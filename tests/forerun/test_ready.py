"""The health check of containers: 0 only for a service that says SERVING."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from forerun import ready


@dataclass
class Service:
    address: str
    servicer: Any

    def says(self, status: int) -> None:
        self.servicer.set("", status)


@pytest.fixture
def service() -> Iterator[Service]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Service(f"127.0.0.1:{port}", servicer)
    server.stop(None).wait()


def exit_code(monkeypatch: pytest.MonkeyPatch, address: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ready", address, "--timeout", "5"])
    return ready.main()


def test_only_serving_is_ready(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.says(health_pb2.HealthCheckResponse.NOT_SERVING)
    assert exit_code(monkeypatch, service.address) == 1
    service.says(health_pb2.HealthCheckResponse.SERVING)
    assert exit_code(monkeypatch, service.address) == 0


def test_nobody_there_is_not_ready(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, "127.0.0.1:1") == 1
    assert capsys.readouterr().err == "127.0.0.1:1 is not serving\n"


def test_waiting_ends_when_the_service_becomes_ready(service: Service) -> None:
    async def wait() -> None:
        service.says(health_pb2.HealthCheckResponse.NOT_SERVING)
        waiting = asyncio.create_task(ready.wait_until_serving(service.address))
        assert not (await asyncio.wait({waiting}, timeout=3 * ready.POLL_S))[0]
        service.says(health_pb2.HealthCheckResponse.SERVING)
        await asyncio.wait_for(waiting, 10)

    asyncio.run(wait())
