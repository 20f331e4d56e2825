"""Sharing every step or taking turns: what is decided, and what the scheduler makes of it."""

from __future__ import annotations

import pytest

from target_service.patience import Patience
from target_service.scheduler import BEHIND_SHARE, GATHER_SHARE, Scheduler, Share
from target_service.session import TargetSession
from target_service.turns import HALVE_ABOVE, JOIN_BELOW, Turns
from tests.target_service.test_scheduler import make_session, shares


def turns(latency: float, step: float = 1.0) -> Turns:
    made = Turns()
    made.record_step(step)
    made.record_latency(latency)
    return made


def test_halves_where_candidates_take_longer_than_a_step() -> None:
    assert turns(HALVE_ABOVE + 0.1).size(5) == 3
    assert turns(HALVE_ABOVE - 0.1).size(5) == 5
    assert turns(9.0).size(1) == 1


def test_what_is_halved_stays_so_until_candidates_are_clearly_early() -> None:
    policy = turns(2.0)
    policy.record_latency((JOIN_BELOW + HALVE_ABOVE) / 2)
    assert policy.halved
    policy.record_latency(JOIN_BELOW - 0.1)
    assert not policy.halved


def test_nothing_is_decided_before_anything_is_measured() -> None:
    policy = Turns()
    policy.record_latency(5.0)
    policy.record_latency(None)
    assert not policy.halved


def halved(latency: float = 0.9) -> Scheduler:
    """A scheduler whose steps take half a second and whose candidates come later than that."""
    policy = Scheduler(Patience(9.0), 64)
    first = make_session(held=3, computed=4)
    policy.record_step([Share(first, 1, 3, True)], 0.5)
    policy.note_arrival(first, latency)
    return policy


def test_of_all_that_are_ready_the_longer_idle_half_goes_first() -> None:
    policy = halved()
    ready = [make_session(held=3, idle_since=float(i % 2), ready_noted=True) for i in range(4)]
    assert [share.session for share in shares(policy.choose(ready, 2.0))] == [ready[0], ready[2]]


def test_half_of_them_waits_for_nobody_and_fewer_not_for_long() -> None:
    policy = halved()
    ready, held = make_session(held=3, ready_noted=True), make_session(idle_since=1.9)
    assert [share.session for share in shares(policy.choose([ready, held], 2.0))] == [ready]
    waits = policy.choose([ready, held, make_session(idle_since=1.9)], 2.0)
    assert waits == pytest.approx(2.0 + GATHER_SHARE * 0.5)


def test_plain_sessions_and_prompts_take_no_turns() -> None:
    policy = halved()
    plain, prompt = make_session(draft_length=0), make_session(length=9, computed=0)
    ready = [make_session(held=3, idle_since=float(i), ready_noted=True) for i in range(2)]
    chosen = {share.session for share in shares(policy.choose([plain, prompt, *ready], 2.0))}
    assert chosen == {plain, prompt, ready[0]}


def behind(policy: Scheduler, others: list[TargetSession], running: int, now: float) -> list[Share] | float | None:
    return policy.choose_behind(others, running, started=2.0, now=now, budget=64)


def test_the_other_half_begins_behind_the_one_that_runs() -> None:
    others = [make_session(held=3, ready_noted=True) for _ in range(2)]
    assert [share.session for share in shares(behind(halved(), others, 2, 2.01))] == others


def test_less_than_a_half_begins_only_when_the_running_step_is_nearly_over() -> None:
    ready, held = make_session(held=3, ready_noted=True), make_session()
    due = 2.0 + BEHIND_SHARE * 0.5
    assert behind(halved(), [ready, held], 2, 2.01) == pytest.approx(due)
    assert [share.session for share in shares(behind(halved(), [ready, held], 2, due))] == [ready]


def test_those_that_share_every_step_do_not_begin_behind_it() -> None:
    policy = halved()
    policy.patience.record_arrival(0.0)
    for _ in range(40):  # candidates come early after all
        policy.note_arrival(make_session(held=3), 0.0)
    assert behind(policy, [make_session(held=3, ready_noted=True)], 1, 2.49) is None
    prompt = make_session(length=9, computed=0)
    assert [share.session for share in shares(behind(policy, [prompt], 1, 2.49))] == [prompt]


def test_nobody_runs_out_of_patience_behind_a_running_step() -> None:
    held = make_session(idle_since=-100.0)
    assert behind(halved(), [held], 1, 2.49) is None
    assert not held.waited
