"""The scheduler: who takes part in a step, with how many tokens, and who sits out for the sake of candidates."""

from __future__ import annotations

import itertools

import pytest

from forerun.candidates import CandidateBuffer
from forerun.runtime.sequence import Sequence
from forerun.runtime.stream import Stream
from forerun.sampling_params import SamplingParams
from target_service.patience import Patience
from target_service.scheduler import GATHER_SHARE, GATHER_SLACK, Scheduler, Share
from target_service.session import TargetSession

ARRIVALS = itertools.count()


def make_session(
    length: int = 5,
    computed: int | None = None,
    draft_length: int = 3,
    held: int = 0,
    exhausted: bool = False,
    **changes: float,
) -> TargetSession:
    """A session with `held` candidates; by default only its last token is not computed yet."""
    sequence = Sequence(range(length))
    sequence.mark_computed(length - 1 if computed is None else computed)
    candidates = CandidateBuffer(16)
    candidates.offer(1, length, [7] * held, exhausted, sequence.token_ids)
    session = TargetSession(
        stream=Stream("gateway", lambda: None),
        session_id=1,
        attachment=1,
        arrival=next(ARRIVALS),
        params=SamplingParams(),
        prompt_length=length,
        sequence=sequence,
        length_limit=100,
        end_token_ids=frozenset(),
        candidates=candidates,
        commit_limit=100,
        draft_length=draft_length,
        round_index=0,
        traceparent="",
        expires_at=None,
        idle_since=0.0,
    )
    for name, value in changes.items():
        setattr(session, name, value)
    return session


def scheduler(patience_s: float = 1.0, budget: int = 64) -> Scheduler:
    return Scheduler(Patience(patience_s), budget)


def shares(chosen: list[Share] | float | None) -> list[Share]:
    assert isinstance(chosen, list), chosen
    return chosen


def test_nobody_with_room_means_nothing_to_do() -> None:
    assert scheduler().choose([make_session(commit_limit=5)], 0.0) is None


def test_a_session_without_its_draft_is_waited_for_until_patience_ends() -> None:
    session = make_session()
    policy = scheduler(patience_s=1.0)
    assert policy.choose([session], 0.25) == 1.0
    (share,) = shares(policy.choose([session], 1.0))
    assert (share.feed_count, share.candidate_count, share.draws) == (1, 0, True)


@pytest.mark.parametrize(("held", "exhausted"), [(3, False), (9, False), (1, True), (0, True)])
def test_a_full_or_exhausted_draft_is_not_waited_for(held: int, exhausted: bool) -> None:
    (share,) = shares(scheduler().choose([make_session(held=held, exhausted=exhausted)], 0.0))
    assert share.candidate_count == min(held, 3)


def test_what_arrived_is_verified_even_if_it_is_not_a_whole_draft() -> None:
    (share,) = shares(scheduler(patience_s=0.0).choose([make_session(held=2)], 0.0))
    assert share.candidate_count == 2


def test_nothing_is_waited_for_when_no_draft_is_expected() -> None:
    (share,) = shares(scheduler().choose([make_session(draft_length=0, held=2)], 0.0))
    assert share.candidate_count == 0


def test_candidates_beyond_the_room_are_not_verified() -> None:
    (share,) = shares(scheduler().choose([make_session(held=3, commit_limit=7)], 0.0))
    assert share.candidate_count == 1  # and the bonus takes the second place


def test_ready_sessions_wait_for_others_only_a_small_part_of_a_step() -> None:
    policy = scheduler(patience_s=1.0)
    policy.record_step([], 0.5)
    both = [make_session(held=3), make_session()]
    assert policy.choose(both, 0.0) == pytest.approx(GATHER_SHARE * 0.5)
    assert len(shares(policy.choose(both, 0.06))) == 1


def test_groups_that_come_apart_are_joined_where_candidates_take_less_than_a_step() -> None:
    policy = scheduler(patience_s=1.0)
    policy.record_step([], 0.5)
    policy.patience.record_arrival(0.2)
    first, second = make_session(held=3, ready_noted=True), make_session(idle_since=0.1)
    assert policy.choose([first, second], 0.15) == pytest.approx(0.1 + GATHER_SLACK * 0.2)
    assert [share.session for share in shares(policy.choose([first, second], 0.4))] == [first]


@pytest.mark.parametrize(("latency", "draft_length"), [(0.6, 3), (0.2, 0)], ids=["late candidates", "a plain session"])
def test_nobody_waits_long_for_others_where_it_does_not_pay(latency: float, draft_length: int) -> None:
    policy = scheduler(patience_s=9.0)
    policy.record_step([], 0.5)
    policy.patience.record_arrival(latency)
    ready = make_session(held=draft_length, draft_length=draft_length, ready_noted=True)
    assert policy.choose([ready, make_session(idle_since=0.1)], 0.15) == pytest.approx(0.15 + GATHER_SHARE * 0.5)


def test_decoding_goes_before_prefill_and_prefill_takes_what_is_left_in_chunks() -> None:
    prefill, decode = make_session(length=30, computed=0), make_session(held=3)
    first, second = shares(scheduler(budget=10).choose([prefill, decode], 0.0))
    assert (first.session, first.feed_count, first.candidate_count) == (decode, 1, 3)
    assert (second.session, second.feed_count, second.draws) == (prefill, 6, False)


def test_a_prompts_last_chunk_draws() -> None:
    (share,) = shares(scheduler(budget=10).choose([make_session(length=30, computed=22)], 0.0))
    assert (share.feed_count, share.draws) == (8, True)


def test_a_step_stays_within_its_budget() -> None:
    sessions = [make_session(held=3) for _ in range(5)]
    chosen = shares(scheduler(budget=10).choose(sessions, 0.0))
    assert sum(share.feed_count + share.candidate_count for share in chosen) == 10
    assert [share.session for share in chosen] == sessions[:3]
