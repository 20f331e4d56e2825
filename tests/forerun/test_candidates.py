"""The candidate buffer: what it takes, what it drops, when an epoch is dead, and when there is nothing to wait for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forerun.candidates import CandidateBuffer

COMMITTED = [1, 2, 3]


def held(limit: int = 8, refuted_epoch: int = 0) -> CandidateBuffer:
    """A buffer that holds 4, 5 after COMMITTED, under epoch 1."""
    buffer = CandidateBuffer(limit, refuted_epoch)
    assert buffer.offer(refuted_epoch + 1, 3, [4, 5], False, COMMITTED)
    return buffer


def test_a_repeated_run_changes_nothing() -> None:
    buffer = held()
    assert buffer.offer(1, 3, [4, 5], False, COMMITTED)
    assert buffer.token_ids == [4, 5]


def test_an_overlapping_run_adds_what_is_new() -> None:
    buffer = held()
    assert buffer.offer(1, 2, [3, 4, 5, 6], False, COMMITTED)
    assert buffer.token_ids == [4, 5, 6]


def test_a_run_after_a_gap_is_dropped_and_the_gap_is_seen() -> None:
    buffer = held()
    assert not buffer.offer(1, 6, [7], False, COMMITTED)
    assert buffer.token_ids == [4, 5]
    assert buffer.leaves_gap(1, 6, 3)
    assert not buffer.leaves_gap(1, 5, 3)
    assert not buffer.leaves_gap(0, 6, 3)


def test_a_dead_epoch_leaves_no_gap() -> None:
    buffer = held()
    buffer.refute()
    assert not buffer.leaves_gap(1, 9, 3)


def test_a_higher_epoch_replaces_all_and_a_lower_one_is_stale() -> None:
    buffer = held()
    assert buffer.offer(2, 3, [9], False, COMMITTED)
    assert buffer.token_ids == [9]
    assert not buffer.offer(1, 3, [4], False, COMMITTED)


def test_a_candidate_that_contradicts_a_committed_token_kills_its_epoch() -> None:
    buffer = held()
    assert not buffer.offer(1, 2, [7, 4], False, COMMITTED)
    assert (buffer.refuted_epoch, buffer.token_ids) == (1, [])
    assert not buffer.offer(1, 3, [4, 5], False, COMMITTED)


def test_a_run_that_contradicts_itself_kills_its_epoch() -> None:
    buffer = held()
    assert not buffer.offer(1, 3, [4, 6], False, COMMITTED)
    assert buffer.refuted_epoch == 1


def test_a_commit_that_agrees_keeps_what_lies_beyond_it() -> None:
    buffer = held()
    assert buffer.commit([4])
    assert (buffer.token_ids, buffer.refuted_epoch) == ([5], 0)


def test_a_commit_that_differs_kills_the_epoch() -> None:
    buffer = held()
    assert not buffer.commit([4, 9])
    assert (buffer.token_ids, buffer.refuted_epoch) == ([], 1)


def test_a_buffer_starts_above_what_was_refuted_before() -> None:
    assert not CandidateBuffer(8, refuted_epoch=5).offer(5, 3, [4], False, COMMITTED)


def test_what_does_not_fit_is_dropped_and_then_nothing_is_exhausted() -> None:
    buffer = held(limit=3)
    assert buffer.offer(1, 5, [6, 7], True, COMMITTED)
    assert buffer.token_ids == [4, 5, 6]
    assert not buffer.exhausted(3)


def test_exhausted_holds_until_more_is_committed_than_was_held() -> None:
    buffer = held()
    assert buffer.offer(1, 5, [], True, COMMITTED)
    assert buffer.exhausted(3)
    assert buffer.commit([4])
    assert buffer.exhausted(4)
    assert buffer.commit([5])
    assert not buffer.exhausted(5)


def test_exhausted_does_not_outlive_a_refutation_at_the_same_length() -> None:
    buffer = held()
    assert buffer.offer(1, 5, [], True, COMMITTED)
    assert not buffer.commit([4, 9])
    assert not buffer.exhausted(5)


def test_exhausted_for_an_earlier_length_says_nothing() -> None:
    buffer = CandidateBuffer(8)
    assert buffer.offer(1, 2, [], True, COMMITTED)
    assert not buffer.exhausted(3)


def test_exhausted_of_a_replaced_epoch_says_nothing() -> None:
    buffer = CandidateBuffer(8)
    assert buffer.offer(1, 3, [], True, COMMITTED)
    assert buffer.offer(2, 3, [], False, COMMITTED)
    assert not buffer.exhausted(3)


runs = st.tuples(st.integers(0, 3), st.integers(0, 8), st.lists(st.integers(1, 2), max_size=5), st.booleans())


@given(st.lists(runs | st.lists(st.integers(1, 2), min_size=1, max_size=3)))
def test_two_receivers_of_the_same_news_hold_the_same(news: list[tuple[int, int, list[int], bool] | list[int]]) -> None:
    """And the buffer is bounded, of one epoch, and empty when that is dead."""
    first, second, committed = CandidateBuffer(4), CandidateBuffer(4), [1]
    for item in news:
        for buffer in (first, second):
            if isinstance(item, list):
                buffer.commit(item)
            else:
                buffer.offer(*item, committed)
                buffer.offer(*item, committed)  # repeated
        if isinstance(item, list):
            committed += item
        assert first.token_ids == second.token_ids
        assert len(first) <= 4
        assert first.epoch > first.refuted_epoch or not first.token_ids
