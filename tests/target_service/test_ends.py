"""A round is cut at its first end, wherever in it that lies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forerun.v1.types_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, FINISH_REASON_UNSPECIFIED
from target_service.ends import cut_at_end


def test_without_an_end_all_tokens_stay() -> None:
    assert cut_at_end([5, 6], {9}, 3) == ([5, 6], FINISH_REASON_UNSPECIFIED)


def test_the_end_token_itself_is_kept_and_nothing_after_it() -> None:
    assert cut_at_end([5, 9, 6, 9], {9}, 8) == ([5, 9], FINISH_REASON_STOP)


def test_the_last_token_there_is_room_for_ends_it() -> None:
    assert cut_at_end([5, 6, 7], {9}, 2) == ([5, 6], FINISH_REASON_LENGTH)


def test_an_end_token_in_the_last_place_is_a_stop() -> None:
    assert cut_at_end([5, 9, 7], {9}, 2) == ([5, 9], FINISH_REASON_STOP)


@given(st.lists(st.integers(0, 3), min_size=1), st.integers(1, 9), st.sets(st.integers(0, 3)))
def test_cutting_a_round_is_cutting_token_by_token(token_ids: list[int], room: int, ends: set[int]) -> None:
    kept, reason = cut_at_end(token_ids, ends, room)
    said: list[int] = []
    for token_id in token_ids:
        said.append(token_id)
        if token_id in ends or len(said) == room:
            break
    assert list(kept) == said
    assert (reason == FINISH_REASON_STOP) == (said[-1] in ends)
