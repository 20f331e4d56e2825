"""Asks a service whether it is ready, by the standard gRPC health protocol: `python -m forerun.ready HOST:PORT`.

Exits 0 if it is, 1 if not: container health checks run it, and `forerun up` waits with it. The answering side is
`forerun.health`; what makes a service ready is the service's own business.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

POLL_S = 0.1
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),  # the default is a second, longer than some starts
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


async def wait_until_serving(address: str) -> None:
    """Returns once the service at `address` says SERVING; asks for ever, so the caller sets the bound."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        while not await _says_serving(channel, 1.0):  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(POLL_S)


async def is_serving(address: str, timeout_s: float) -> bool:
    """Whether the service at `address` says SERVING within `timeout_s`."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        return await _says_serving(channel, timeout_s)


async def _says_serving(channel: grpc.aio.Channel, timeout_s: float) -> bool:
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def main() -> int:
    """0 if the service is ready, else 1."""
    parser = argparse.ArgumentParser(prog="python -m forerun.ready", description="Asks a service whether it is ready.")
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS", help="default: %(default)s")
    arguments = parser.parse_args()
    if asyncio.run(is_serving(arguments.address, arguments.timeout)):
        print("serving")
        return 0
    print(f"{arguments.address} is not serving", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
