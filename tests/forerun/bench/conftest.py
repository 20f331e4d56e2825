"""What the tests of the benchmark share: a gateway that speculates without models, at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from forerun.v1 import gateway_pb2, gateway_pb2_grpc, types_pb2
from tests.fake_gateway import FakeGateway, chunk, started

WORKERS = 16


@dataclass
class SpeculatingGateway(FakeGateway):
    """Every other draft is accepted in full, the others not at all. The tokens depend on the seed alone."""

    draft: str = "small"
    changed_by: str = ""  # the word in a prompt whose answer speculation changes, which it must never do
    together: threading.Barrier | None = None  # answers only when so many wait for an answer
    interrupted_at: int = 0  # the request with which somebody presses Ctrl-C
    most_at_once: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def Generate(self, request: gateway_pb2.GenerateRequest, context: Any) -> Any:
        with self._lock:
            self.requests.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if "FAIL" in request.chat.messages[-1].content:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
            if len(self.requests) == self.interrupted_at:
                os.kill(os.getpid(), signal.SIGINT)
            if self.together is not None:
                self.together.wait(timeout=20)
            yield from self._answer(request)
        finally:
            with self._lock:
                self._at_once -= 1

    def _answer(self, request: gateway_pb2.GenerateRequest) -> Iterator[gateway_pb2.GenerateResponse]:
        length = (request.speculation.draft_length or 4) if request.speculation.enabled else 0
        changed = length > 0 and bool(self.changed_by) and self.changed_by in request.chat.messages[0].content
        tokens = [request.seed * 1000 + index + changed for index in range(request.max_tokens)]
        yield started(request.seed)
        usage = gateway_pb2.SpeculationUsage()
        while tokens:
            accepted = min(length if usage.rounds % 2 else 0, len(tokens) - 1)
            committed, tokens = tokens[: accepted + 1], tokens[accepted + 1 :]
            _count(usage, length, accepted)
            draft = [*committed[:accepted], *[0] * (length - accepted)]
            round = gateway_pb2.Round(
                index=usage.rounds - 1, draft_token_ids=draft, draft_texts=["d"] * length,
                committed_token_ids=committed, committed_texts=["c"] * len(committed), accepted_count=accepted,
                round_ns=10_000_000, step_ns=7_000_000, wait_ns=2_000_000, draft_ns=1_500_000, batch_size=1,
            )  # fmt: skip
            yield chunk("c" * len(committed), *committed, rounds=[round] if request.include_rounds else [])
        finished = gateway_pb2.Finished(
            finish_reason=types_pb2.FINISH_REASON_LENGTH, prompt_tokens=3, speculation=usage
        )
        yield gateway_pb2.GenerateResponse(finished=finished)

    def GetStatus(self, request: gateway_pb2.GetStatusRequest, context: Any) -> gateway_pb2.GetStatusResponse:
        ready = gateway_pb2.REPLICA_STATE_READY
        target = types_pb2.ServiceInfo(model_id="large", dtype="float32", device="cpu")
        status = gateway_pb2.GetStatusResponse(targets=[gateway_pb2.ReplicaStatus(state=ready, info=target)])
        if self.draft:
            status.drafts.add(state=ready, info=types_pb2.ServiceInfo(model_id=self.draft))
        return status


def _count(usage: gateway_pb2.SpeculationUsage, length: int, accepted: int) -> None:
    usage.rounds += 1
    usage.drafted_tokens += length
    usage.accepted_tokens += accepted
    while len(usage.drafted_per_position) < length:
        usage.drafted_per_position.append(0)
        usage.accepted_per_position.append(0)
    for place in range(length):
        usage.drafted_per_position[place] += 1
        usage.accepted_per_position[place] += place < accepted


@pytest.fixture
def gateway() -> Iterator[SpeculatingGateway]:
    server = grpc.server(futures.ThreadPoolExecutor(WORKERS))
    fake = SpeculatingGateway()
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(fake, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield fake
    server.stop(None).wait()
