"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from forerun.v1 import gateway_pb2_grpc
from tests.fake_gateway import FakeGateway


@pytest.fixture
def fake_gateway() -> Iterator[FakeGateway]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    fake = FakeGateway()
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(fake, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield fake
    server.stop(None).wait()
