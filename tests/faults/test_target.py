"""The target dies, hangs, is replaced or stays away: nothing committed is lost, nothing is said twice."""

from __future__ import annotations

import random
from collections.abc import Callable

import grpc
import pytest

from tests.faults.usual import SEED, Checkpoints, add_target, assert_in_mid_stream, request
from tests.processes import Answer, Fleet, Service, eventually

FAULT_AT = 60  # tokens the client has when the fault comes
Add = Callable[..., Service]


def test_a_target_killed_and_restarted_in_mid_stream_loses_and_repeats_nothing(
    gateway: Service, target: Service, draft: Service, undisturbed: Answer
) -> None:
    with Answer(gateway.address, request(logprobs=0)) as answer:
        answer.read(FAULT_AT)
        assert_in_mid_stream(gateway, target, draft)
        target.kill()
        assert_in_mid_stream(gateway, draft)
        target.start(wait=False)
        answer.read()
    assert answer.token_ids == undisturbed.token_ids
    assert answer.text == undisturbed.text
    assert [finished.index for finished in answer.rounds] == list(range(len(answer.rounds))), "no round is missing"
    assert answer.finished is not None and answer.finished.completion_tokens == len(undisturbed.token_ids)


@pytest.mark.parametrize("fault", [Service.kill, Service.freeze])
def test_a_stream_goes_on_on_another_target(
    fault: Callable[[Service], None],
    add_gateway: Add,
    fleet: Fleet,
    checkpoints: Checkpoints,
    target: Service,
    undisturbed: Answer,
) -> None:
    first = add_target(fleet, checkpoints).start()
    gateway = add_gateway([first, target], [], verdict_timeout_s=0.5).start()
    eventually(lambda: all(not replica.detail for replica in gateway.status().targets), 10, "both targets are ready")
    with Answer(gateway.address, request()) as answer:
        answer.read(FAULT_AT)
        assert_in_mid_stream(gateway, first)
        fault(first)
        answer.read()
    assert answer.token_ids == undisturbed.token_ids
    assert answer.finished is not None and answer.finished.timing.total_ns < 15e9
    with Answer(gateway.address, request()) as later:
        later.read()
    assert later.token_ids == undisturbed.token_ids, "nor does the lost one get the next request"
    assert later.finished is not None and later.finished.timing.total_ns < 10e9


def test_without_a_target_for_too_long_the_call_ends_saying_why_and_can_be_resumed(
    add_gateway: Add, target: Service, draft: Service, undisturbed: Answer
) -> None:
    gateway = add_gateway([target], [draft], target_wait_s=1).start()
    with Answer(gateway.address, request()) as answer:
        answer.read(FAULT_AT)
        assert_in_mid_stream(gateway, target, draft)
        target.kill()
        with pytest.raises(grpc.RpcError) as caught:
            answer.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "no target for 1 s" in caught.value.details() and target.address in caught.value.details()
    received = answer.token_ids
    assert FAULT_AT <= len(received) < len(undisturbed.token_ids)
    assert received == undisturbed.token_ids[: len(received)], "all that was committed has come"
    eventually(lambda: draft.stats().open_sessions == 0, 1, "the draft let go of the failed request")

    target.start()
    with Answer(gateway.address, request(resume_token_ids=received)) as resumed:
        resumed.read()
    assert resumed.token_ids == undisturbed.token_ids
    assert answer.text + resumed.text == undisturbed.text
    assert resumed.finished is not None and resumed.finished.completion_tokens == len(undisturbed.token_ids)


def test_a_long_answer_under_random_kills_of_both_services_is_the_same(
    gateway: Service, target: Service, draft: Service
) -> None:
    length, chance = 1500, random.Random(SEED)
    with Answer(gateway.address, request(length, speculation={"enabled": False})) as plain:
        plain.read()
    victims: list[str] = []
    with Answer(gateway.address, request(length)) as answer:
        answer.read(10)
        while gateway.status().running_requests:
            victim = chance.choice([target, draft])
            victims.append(victim.module)
            victim.restart(wait=False)
            answer.read(len(answer.token_ids) + chance.randint(1, 30))
            victim.wait_serving()
        answer.read()
    print(f"seed {SEED}, killed {victims}")
    assert min(victims.count(service.module) for service in (target, draft)) >= 2, f"{victims} (seed {SEED})"
    assert answer.token_ids == plain.token_ids
    assert answer.text == plain.text
    assert [finished.index for finished in answer.rounds] == list(range(len(answer.rounds)))
