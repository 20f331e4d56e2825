"""The three services as real processes for tests that kill, stop and restart them. Nothing outlives the tests.

A `Service` keeps its port over restarts, so that the others find it again. Waiting is always for a condition and
always bounded; `eventually` is the one place that polls.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forerun.cli.child import guarded
from forerun.v1 import (
    draft_pb2,
    draft_pb2_grpc,
    gateway_pb2,
    gateway_pb2_grpc,
    target_pb2,
    target_pb2_grpc,
    types_pb2,
)

ROOT = Path(__file__).parents[1]
START_S = 60.0  # on a busy machine
POLL_S = 0.01
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
)
_SERVING = health_pb2.HealthCheckResponse.SERVING


def eventually(condition: Callable[[], object], within_s: float, what: str) -> float:
    """Returns how long it took until `condition` held; fails if that is longer than `within_s`."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(POLL_S)
    return time.monotonic() - started


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def dial(address: str, **options: int) -> grpc.Channel:
    """A channel that shares its connection with no other; `options` are gRPC's own, with `__` for dots."""
    own = tuple((name.replace("__", "."), value) for name, value in options.items())
    return grpc.insecure_channel(address, options=(*_CHANNEL_OPTIONS, *own))


class Forker:
    """The process that starts services; see `tests.forker`. Closing it ends them all."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("FORERUN_", "OTEL_"))}
        environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"}
        command = guarded([sys.executable, "-m", "tests.forker"])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )

    def ask(self, **order: Any) -> Any:
        """Sends one order and returns its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._process as process:  # closes its pipes and waits
            process.kill()


class Service:
    """One service: `python -m MODULE` with fixed flags and a fixed port, started as often as the test likes."""

    def __init__(self, forker: Forker, module: str, log: Path, port: int = 0, **settings: object) -> None:
        self.module = module
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.settings = {"port": self.port, **settings}
        self.pid = 0
        self._forker = forker
        self._log = log
        self._pidfd = -1

    @property
    def log(self) -> str:
        """All that was logged so far, over all starts."""
        return self._log.read_text() if self._log.exists() else ""

    def start(self, wait: bool = True) -> Self:
        """Starts a process; `wait` until it is SERVING."""
        assert not self.pid, f"{self.module} runs already"
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.settings.items()]
        self.pid = self._forker.ask(module=self.module, arguments=flags, log=str(self._log))
        self._pidfd = os.pidfd_open(self.pid)
        return self.wait_serving() if wait else self

    def wait_serving(self) -> Self:
        """Returns once the health service says SERVING; fails with the log if the process ended instead."""
        deadline = time.monotonic() + START_S
        with dial(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while not self._serves(stub):
                assert not self.exited(0), f"{self.module} ended:\n{self.log[-4000:]}"
                assert time.monotonic() < deadline, f"{self.module} is not SERVING:\n{self.log[-4000:]}"
                time.sleep(POLL_S)
        return self

    def health(self) -> int:
        """What the health service says; UNKNOWN if nobody answers."""
        with dial(self.address) as channel:
            try:
                return int(health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2).status)
            except grpc.RpcError:
                return int(health_pb2.HealthCheckResponse.UNKNOWN)

    @staticmethod
    def _serves(stub: Any) -> bool:
        try:
            return bool(stub.Check(health_pb2.HealthCheckRequest(), timeout=1).status == _SERVING)
        except grpc.RpcError:
            return False

    def exited(self, within_s: float) -> bool:
        """Whether the process ends within so many seconds."""
        return bool(select.select([self._pidfd], [], [], within_s)[0])

    def wait_exit(self, within_s: float) -> int:
        """Its exit code, negative for a signal; fails if it does not end in time."""
        assert self.exited(within_s), f"{self.module} still runs after {within_s:g} s:\n{self.log[-4000:]}"
        code: int = self._forker.ask(exited=self.pid)
        os.close(self._pidfd)
        self.pid = 0
        return code

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone. Safe to repeat."""
        if self.pid:
            self.send(signal.SIGKILL)
            self.wait_exit(10)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def restart(self, wait: bool = True) -> Self:
        """Kills and starts again on the same port."""
        self.kill()
        return self.start(wait)

    # What it says of itself

    def stats(self) -> types_pb2.ServiceStats:
        """A model service's counters."""
        with dial(self.address) as channel:
            if "target" in self.module:
                request = target_pb2.TargetServiceGetStatsRequest()
                stats: types_pb2.ServiceStats = (
                    target_pb2_grpc.TargetServiceStub(channel).GetStats(request, timeout=10, wait_for_ready=True).stats
                )
            else:
                asked = draft_pb2.DraftServiceGetStatsRequest()
                stats = draft_pb2_grpc.DraftServiceStub(channel).GetStats(asked, timeout=10, wait_for_ready=True).stats
            return stats

    def status(self) -> gateway_pb2.GetStatusResponse:
        """A gateway's view of itself and of the services behind it."""
        with dial(self.address) as channel:
            request = gateway_pb2.GetStatusRequest()
            response: gateway_pb2.GetStatusResponse = gateway_pb2_grpc.GatewayServiceStub(channel).GetStatus(
                request, timeout=10, wait_for_ready=True
            )
            return response

    def rss_bytes(self) -> int:
        """Resident memory of the process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Fleet:
    """Services that end together. A context manager."""

    def __init__(self, forker: Forker, folder: Path) -> None:
        self._forker = forker
        self._folder = folder
        self.services: list[Service] = []

    def add(self, module: str, port: int = 0, **settings: object) -> Service:
        """A service that is not started yet."""
        log = self._folder / f"{len(self.services)}-{module}.log"
        service = Service(self._forker, module, log, port, **settings)
        self.services.append(service)
        return service

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for service in self.services:
            service.kill()
            if error is not None:
                print(f"--- {service.module} {service.address}\n{service.log[-3000:]}")


class Answer:
    """One Generate call, read no faster than the test asks. Tokens are counted as the client has them."""

    def __init__(self, address: str, request: gateway_pb2.GenerateRequest, wait: bool = True, **options: int) -> None:
        self._channel = dial(address, **options)
        self._call = gateway_pb2_grpc.GatewayServiceStub(self._channel).Generate(
            request, timeout=90, wait_for_ready=wait
        )
        self.token_ids: list[int] = list(request.resume_token_ids)
        self.text = ""
        self.rounds: list[gateway_pb2.Round] = []
        self.started: gateway_pb2.Started | None = None
        self.finished: gateway_pb2.Finished | None = None

    def read(self, until: int | None = None) -> Self:
        """Reads until the client has so many tokens; without a number, to the end. Raises grpc.RpcError."""
        while self.finished is None and (until is None or len(self.token_ids) < until):
            self._take(next(self._call))
        return self

    def _take(self, response: gateway_pb2.GenerateResponse) -> None:
        kind = response.WhichOneof("event")
        if kind == "started":
            self.started = response.started
        elif kind == "finished":
            self.finished = response.finished
        else:
            self.token_ids += response.chunk.token_ids
            self.text += response.chunk.text
            self.rounds += response.chunk.rounds

    def cancel(self) -> None:
        """Hangs up."""
        self._call.cancel()

    def close(self) -> None:
        """Closes the connection, whatever is under way. Safe to repeat."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
