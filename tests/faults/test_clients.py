"""Clients go away, stop reading, come in crowds, or are no clients at all: the others notice nothing."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import grpc
import pytest

from forerun.v1 import gateway_pb2, gateway_pb2_grpc
from tests.faults.usual import CONTEXT_LENGTH, LENGTH, assert_in_mid_stream, request
from tests.processes import Answer, Service, dial, eventually

FAULT_AT = 60  # tokens the client has when the fault comes
CREDIT = 64
SMALL_WINDOW = {"grpc__http2__lookahead_bytes": 64, "grpc__http2__bdp_probe": 0}
Add = Callable[..., Service]


def test_a_client_that_hangs_up_frees_both_sequences_within_a_second(
    gateway: Service, target: Service, draft: Service
) -> None:
    with Answer(gateway.address, request()) as answer:
        answer.read(FAULT_AT)
        assert_in_mid_stream(gateway, target, draft)
        answer.cancel()
        for service in (target, draft):
            eventually(lambda service=service: service.stats().open_sessions == 0, 1, f"{service.module} is free")
            assert service.stats().used_blocks == 0
    assert gateway.status().running_requests == 0


def test_a_client_whose_connection_breaks_frees_both_sequences_within_a_second(
    gateway: Service, target: Service, draft: Service
) -> None:
    answer = Answer(gateway.address, request())
    answer.read(FAULT_AT)
    assert_in_mid_stream(gateway, target, draft)
    answer.close()
    for service in (target, draft):
        eventually(lambda service=service: service.stats().open_sessions == 0, 1, f"{service.module} is free")


def test_a_client_that_stops_reading_stops_itself_alone_and_goes_on_when_it_reads_again(
    add_gateway: Add, target: Service, draft: Service, undisturbed: Answer
) -> None:
    gateway = add_gateway([target], [draft], credit_tokens=CREDIT, verdict_timeout_s=1).start()
    bulky = request(CONTEXT_LENGTH - 100, logprobs=20)  # more than the buffers between the two processes hold
    with Answer(gateway.address, bulky, **SMALL_WINDOW) as slow:
        slow.read(20)
        eventually(lambda: paused(target), 60, "the target stops at the slow client's commit limit")
        held = gateway.status()
        assert held.running_requests == 1 and held.buffered_tokens <= CREDIT
        assert target.stats().queued_entries == draft.stats().queued_entries == 0
        with Answer(gateway.address, request()) as other:
            other.read()
        assert other.token_ids == undisturbed.token_ids
        assert gateway.status().buffered_tokens <= CREDIT
        opened = target.log.count("replica_lost")
        slow.read()
        assert target.log.count("replica_lost") == opened
    assert slow.token_ids[:LENGTH] == undisturbed.token_ids
    assert len(slow.token_ids) == CONTEXT_LENGTH - 100
    indices = [finished.index for finished in slow.rounds]
    assert indices == list(range(len(indices)))


def paused(target: Service) -> bool:
    """Whether the target has work, but no leave to do it: two looks at its counter, many steps apart."""
    before = target.stats().committed_tokens
    for _ in range(20):
        stats = target.stats()
    return stats.open_sessions == 1 and stats.committed_tokens == before > FAULT_AT


def test_a_thousand_streams_of_one_client_are_served_or_refused_and_none_is_forgotten(
    add_gateway: Add, target: Service, draft: Service
) -> None:
    gateway = add_gateway([target], [draft], max_requests=16, max_queue=200).start()
    outcomes: dict[grpc.StatusCode, int] = {}
    with dial(gateway.address) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        calls = [stub.Generate(request(2), timeout=60) for _ in range(1000)]
        for call in calls:
            with suppress(grpc.RpcError):
                deque(call, maxlen=0)
            outcomes[call.code()] = outcomes.get(call.code(), 0) + 1
    assert outcomes[grpc.StatusCode.OK] >= 200
    assert sum(outcomes.values()) == 1000 and set(outcomes) <= {
        grpc.StatusCode.OK,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
    status = gateway.status()
    assert (status.running_requests, status.waiting_requests, status.buffered_tokens) == (0, 0, 0)
    assert target.stats().open_sessions == draft.stats().open_sessions == 0


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "zeros": bytes(100_000),
    "preface, then noise": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)) * 100,
    "preface, then silence": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


def test_noise_at_the_ports_hurts_nobody(
    gateway: Service, target: Service, draft: Service, undisturbed: Answer
) -> None:
    with Answer(gateway.address, request()) as answer:
        answer.read(FAULT_AT)
        sockets = []
        for service in (gateway, target, draft):
            for noise in GARBAGE.values():
                sockets.append(socket.create_connection(("127.0.0.1", service.port), timeout=5))
                sockets[-1].sendall(noise)
        answer.read()
        for each in sockets:
            each.close()
    assert answer.token_ids == undisturbed.token_ids


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (request(1, text="x" * (65 << 20)), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (request(1, text="The draft runs ahead. " * 100_000), grpc.StatusCode.INVALID_ARGUMENT),
        (
            gateway_pb2.GenerateRequest(tokens=gateway_pb2.TokenIds(ids=[5] * 3_000_000)),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
    ids=["over the message limit", "two megabytes of text", "three million ids"],
)
def test_very_large_requests_are_refused_and_others_go_on(
    what: gateway_pb2.GenerateRequest, code: grpc.StatusCode, gateway: Service, undisturbed: Answer
) -> None:
    with Answer(gateway.address, request()) as answer:
        answer.read(20)
        with pytest.raises(grpc.RpcError) as caught, Answer(gateway.address, what) as large:
            large.read()
        answer.read()
    assert caught.value.code() is code
    assert answer.token_ids == undisturbed.token_ids
