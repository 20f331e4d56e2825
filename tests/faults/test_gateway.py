"""Gateways die, meet on one pair of services, share a name by mistake, or stop in an orderly way."""

from __future__ import annotations

import signal
from collections.abc import Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tests.faults.usual import assert_in_mid_stream, request
from tests.processes import Answer, Service, eventually

FAULT_AT = 60  # tokens the client has when the fault comes
Add = Callable[..., Service]


def test_after_a_gateway_died_the_services_are_free_and_another_goes_on(
    gateway: Service, add_gateway: Add, target: Service, draft: Service, undisturbed: Answer
) -> None:
    with Answer(gateway.address, request()) as answer:
        answer.read(FAULT_AT)
        assert_in_mid_stream(gateway, target, draft)
        gateway.kill()
        with pytest.raises(grpc.RpcError) as caught:
            answer.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    for service in (target, draft):
        eventually(lambda service=service: service.stats().open_sessions == 0, 1, f"{service.module} is free")
        assert service.stats().used_blocks == 0
    received = answer.token_ids
    assert FAULT_AT <= len(received) < len(undisturbed.token_ids)
    assert answer.started is not None

    again = request(seed=answer.started.seed, resume_token_ids=received)
    again.tokens.ids.extend(answer.started.prompt_token_ids)
    with Answer(add_gateway([target], [draft]).start().address, again) as resumed:
        resumed.read()
    assert resumed.token_ids == undisturbed.token_ids
    assert answer.text + resumed.text == undisturbed.text


def test_gateways_with_the_same_session_numbers_do_not_mix(
    add_gateway: Add, target: Service, draft: Service, undisturbed: Answer
) -> None:
    first, second = (add_gateway([target], [draft]).start() for _ in range(2))
    other_prompt = request(text="What is the capital of France?")
    with Answer(first.address, other_prompt) as other:
        unmixed = other.read().token_ids
    with Answer(second.address, request(1)) as answer:  # both have given out number 1 now
        answer.read()
    with Answer(first.address, other_prompt) as theirs, Answer(second.address, request()) as mine:
        theirs.read(FAULT_AT)
        mine.read(FAULT_AT)
        assert target.stats().open_sessions == draft.stats().open_sessions == 2
        first.kill()
        eventually(lambda: target.stats().open_sessions == 1, 1, "the killed gateway's session is gone")
        mine.read()
    assert mine.token_ids == undisturbed.token_ids
    assert theirs.token_ids == unmixed[: len(theirs.token_ids)]


def test_gateways_that_share_a_name_replace_each_other_and_both_answer(
    add_gateway: Add, target: Service, draft: Service, undisturbed: Answer
) -> None:
    first = add_gateway([target], [draft], gateway_id="twin").start()
    with Answer(first.address, request()) as early:
        early.read(FAULT_AT)
        second = add_gateway([target], [draft], gateway_id="twin").start()
        assert_in_mid_stream(first)
        assert target.stats().open_streams == 1, "the newer stream replaced the older"
        with Answer(second.address, request()) as late:
            late.read()
        early.read()
    assert early.token_ids == late.token_ids == undisturbed.token_ids
    assert "a newer stream of this gateway took over" in first.log


def test_a_gateway_told_to_stop_finishes_what_it_has_and_takes_no_more(
    gateway: Service, target: Service, draft: Service, undisturbed: Answer
) -> None:
    with Answer(gateway.address, request()) as answer:
        answer.read(FAULT_AT)
        assert_in_mid_stream(gateway, target, draft)
        with Answer(gateway.address, request()) as connected_before:
            connected_before.read(1)
            gateway.send(signal.SIGTERM)
            eventually(
                lambda: gateway.health() != health_pb2.HealthCheckResponse.SERVING, 2, "it says that it takes no more"
            )
            with pytest.raises(grpc.RpcError), Answer(gateway.address, request(1), wait=False) as refused:
                refused.read()
            answer.read()
            connected_before.read()
    assert answer.token_ids == connected_before.token_ids == undisturbed.token_ids
    assert gateway.wait_exit(10) == 0


def test_streams_that_do_not_finish_in_time_are_ended(add_gateway: Add, target: Service, draft: Service) -> None:
    gateway = add_gateway([target], [draft], grace_s=0.2).start()
    with Answer(gateway.address, request(1900)) as answer:
        answer.read(FAULT_AT)
        gateway.send(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as caught:
            answer.read()
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert gateway.wait_exit(5) == 0
    eventually(lambda: target.stats().open_sessions == 0, 1, "the target is free")


def test_a_target_told_to_stop_finishes_what_it_has(gateway: Service, target: Service, undisturbed: Answer) -> None:
    with Answer(gateway.address, request()) as answer:
        answer.read(FAULT_AT)
        assert_in_mid_stream(gateway, target)
        target.send(signal.SIGTERM)
        eventually(lambda: target.health() != health_pb2.HealthCheckResponse.SERVING, 2, "it says that it stops")
        answer.read()
    assert answer.token_ids == undisturbed.token_ids
    assert target.wait_exit(2) == 0, "it does not wait for gateways that have nothing on it"
