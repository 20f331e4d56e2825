"""A service process without a model: `python fake_service.py NAME PORT [MODE]`. It serves only health.

MODE `dies` ends at once with code 3, `mute` never says SERVING, `stubborn` ignores SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main(name: str, port: str, mode: str = "well") -> int:
    print(f"{name} begins", flush=True)
    if mode == "dies":
        print("the model is missing", file=sys.stderr)
        return 3
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if mode == "stubborn" else lambda *_: stop.set())
    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    status = health_pb2.HealthCheckResponse.NOT_SERVING if mode == "mute" else health_pb2.HealthCheckResponse.SERVING
    servicer.set("", status)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    stop.wait()
    print(f"{name} drained", flush=True)
    server.stop(None).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
