"""The draft dies, hangs, comes late or comes back: the client's tokens are the same, only later."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.usual import assert_in_mid_stream, request
from tests.processes import Answer, Service, eventually

FAULT_AT = 60  # tokens the client has when the fault comes
Add = Callable[..., Service]


def speculated_length(answer: Answer) -> int:
    """Output tokens up to the last round that verified candidates."""
    length, speculated = 0, 0
    for finished in answer.rounds:
        length += len(finished.committed_token_ids)
        speculated = length if finished.draft_token_ids else speculated
    return speculated


def test_a_killed_draft_changes_no_token_and_a_new_one_speculates_again(
    gateway: Service, target: Service, draft: Service, undisturbed: Answer
) -> None:
    with Answer(gateway.address, request()) as answer:
        answer.read(FAULT_AT)
        assert_in_mid_stream(gateway, target, draft)
        draft.kill()
        assert_in_mid_stream(gateway, target)
        answer.read()
    assert answer.token_ids == undisturbed.token_ids
    assert answer.text == undisturbed.text
    assert 0 < speculated_length(answer) < len(answer.token_ids), "plain rounds followed speculated ones"
    draft.start()
    with Answer(gateway.address, request()) as later:
        later.read()
    assert later.token_ids == undisturbed.token_ids
    assert later.finished is not None and later.finished.speculation.accepted_tokens > 0


def test_the_same_stream_is_speculated_again_after_a_restart(gateway: Service, target: Service, draft: Service) -> None:
    length = 1500
    with Answer(gateway.address, request(length)) as answer:
        answer.read(FAULT_AT)
        assert_in_mid_stream(gateway, target, draft)
        draft.restart()
        assert_in_mid_stream(gateway, target)
        eventually(lambda: draft.stats().drafted_tokens > 0, 10, "the new draft drafts for the old stream")
        accepted = target.stats().accepted_tokens
        answer.read()
    assert target.stats().accepted_tokens > accepted
    assert answer.finished is not None and answer.finished.completion_tokens == length


def test_a_hanging_draft_costs_time_and_no_token_and_speculates_once_it_goes_on(
    gateway: Service, target: Service, draft: Service, undisturbed: Answer
) -> None:
    with Answer(gateway.address, request()) as answer:
        answer.read(FAULT_AT)
        assert_in_mid_stream(gateway, target, draft)
        draft.freeze()
        answer.read()
    assert answer.token_ids == undisturbed.token_ids
    assert answer.finished is not None
    assert answer.finished.timing.total_ns < 20e9, "it went on plainly"
    waited_ns = [finished.wait_ns for finished in answer.rounds]
    assert sum(waited_ns) < 5e9, "the target gave up waiting for candidates"
    draft.thaw()
    eventually(lambda: gateway.status().drafts[0].detail == "", 10, "the draft is taken back")
    with Answer(gateway.address, request()) as later:
        later.read()
    assert later.token_ids == undisturbed.token_ids
    assert later.finished is not None and later.finished.speculation.accepted_tokens > 0


def test_a_draft_may_come_later_than_its_gateway(
    add_gateway: Add, target: Service, draft: Service, undisturbed: Answer
) -> None:
    draft.kill()
    gateway = add_gateway([target], [draft]).start()
    with Answer(gateway.address, request()) as plain:
        plain.read()
    assert plain.token_ids == undisturbed.token_ids
    assert plain.finished is not None and plain.finished.speculation.drafted_tokens == 0
    draft.start()
    eventually(lambda: gateway.status().drafts[0].detail == "", 10, "the draft is found")
    with Answer(gateway.address, request()) as speculated:
        speculated.read()
    assert speculated.token_ids == undisturbed.token_ids
    assert speculated.finished is not None and speculated.finished.speculation.accepted_tokens > 0
