"""A gateway without models: it plays back scripted responses over a real channel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from forerun.v1 import gateway_pb2, gateway_pb2_grpc, types_pb2

Script = Callable[[gateway_pb2.GenerateRequest, Any], Iterator[gateway_pb2.GenerateResponse]]


def started(seed: int = 7) -> gateway_pb2.GenerateResponse:
    return gateway_pb2.GenerateResponse(
        started=gateway_pb2.Started(request_id="r1", prompt_token_ids=[1, 2, 3], seed=seed, model="fake")
    )


def chunk(text: str, *token_ids: int, **fields: Any) -> gateway_pb2.GenerateResponse:
    return gateway_pb2.GenerateResponse(chunk=gateway_pb2.Chunk(text=text, token_ids=token_ids, **fields))


def finished(
    reason: types_pb2.FinishReason = types_pb2.FINISH_REASON_STOP, completion_tokens: int = 3, **speculation: Any
) -> gateway_pb2.GenerateResponse:
    return gateway_pb2.GenerateResponse(
        finished=gateway_pb2.Finished(
            finish_reason=reason,
            prompt_tokens=3,
            completion_tokens=completion_tokens,
            speculation=gateway_pb2.SpeculationUsage(**speculation),
            timing=gateway_pb2.Timing(
                time_to_first_token_ns=250_000_000, time_per_output_token_ns=50_000_000, total_ns=350_000_000
            ),
        )
    )


# Four rounds, one of each kind: a rejection after one of two, everything accepted, plain, and one that the end cut.
ROUNDS = [
    gateway_pb2.Round(
        index=0, draft_token_ids=[10, 99], draft_texts=["The", " dog"], committed_token_ids=[10, 11],
        committed_texts=["The", " cat"], accepted_count=1, epoch=1, round_ns=60_000_000, step_ns=50_000_000,
        wait_ns=2_000_000, draft_ns=7_000_000,
    ),
    gateway_pb2.Round(
        index=1, draft_token_ids=[12], draft_texts=[" sat"], committed_token_ids=[12, 13],
        committed_texts=[" sat", " on"], accepted_count=1, epoch=2, round_ns=60_000_000,
    ),
    gateway_pb2.Round(index=2, committed_token_ids=[14], committed_texts=["\n"], round_ns=50_000_000),
    gateway_pb2.Round(
        index=3, draft_token_ids=[15, 16], draft_texts=["mats", "."], committed_token_ids=[15],
        committed_texts=["mats"], accepted_count=1, epoch=2,
    ),
]  # fmt: skip


def cat_script(request: gateway_pb2.GenerateRequest, context: Any) -> Iterator[gateway_pb2.GenerateResponse]:
    """`The cat sat on\\nmats` in four rounds, which the chunks carry if asked."""
    yield started(request.seed if request.HasField("seed") else 7)
    for round in ROUNDS:
        rounds = [round] if request.include_rounds else []
        yield chunk("".join(round.committed_texts), *round.committed_token_ids, rounds=rounds)
    yield finished(
        completion_tokens=6,
        rounds=4,
        drafted_tokens=5,
        accepted_tokens=3,
        accepted_per_position=[3, 0],
        drafted_per_position=[3, 2],
        mean_accepted_length=1.5,
        rollbacks=1,
    )


@dataclass
class FakeGateway(gateway_pb2_grpc.GatewayServiceServicer):
    """Plays `script` for each request and keeps what it was sent."""

    script: Script = cat_script
    requests: list[gateway_pb2.GenerateRequest] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    time_remaining_s: float = 0.0
    cancelled: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def Generate(self, request: gateway_pb2.GenerateRequest, context: Any) -> Any:
        self.requests.append(request)
        self.time_remaining_s = context.time_remaining()
        context.add_callback(self.cancelled.set)
        yield from self.script(request, context)

    def GetStatus(self, request: gateway_pb2.GetStatusRequest, context: Any) -> gateway_pb2.GetStatusResponse:
        def ready(model: str) -> gateway_pb2.ReplicaStatus:
            info = types_pb2.ServiceInfo(model_id=model)
            return gateway_pb2.ReplicaStatus(state=gateway_pb2.REPLICA_STATE_READY, info=info)

        return gateway_pb2.GetStatusResponse(targets=[ready("large")], drafts=[ready("small")], draft_length=4)


@contextmanager
def serving(fake: FakeGateway) -> Iterator[grpc.Server]:
    """The fake on a free port, which it knows as its address; the server may be stopped inside the block."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(fake, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield server
    finally:
        server.stop(None).wait()
