"""Rounds follow from guesses: where each begins, what it commits, and what was never compared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draft_service.check_pair import rounds
from draft_service.check_pair.rounds import LONGEST, Guess, from_flags, play

NOTHING = Guess(0, 0, False)


def test_a_round_begins_after_the_correction_of_the_one_before() -> None:
    #                       round 1: two right, one wrong; round 2: none right; round 3: one right, then the end
    tally = play([from_flags([True, True, False, False, True])], 4)
    assert (tally.rounds, tally.committed) == (3, 5)
    assert tally.accepted == [2, 1, 0, 0]
    assert tally.compared == [3, 2, 1, 1]  # the rounds at the end have less to be compared with
    assert tally.mean_accepted_length == 5 / 3


def test_a_draft_that_is_always_right_is_accepted_at_every_position() -> None:
    for length in range(1, LONGEST + 1):
        tally = play([from_flags([True] * 24)], length)
        assert tally.acceptance == [1.0] * length
        assert tally.rounds == -(-24 // (length + 1))


def test_rounds_are_plain_where_a_lookup_finds_nothing() -> None:
    tally = play([[NOTHING, Guess(3, 2, False), NOTHING, NOTHING, NOTHING]], 2)
    assert (tally.rounds, tally.looked_up, tally.modelled, tally.committed) == (3, 1, 0, 5)


def test_the_model_is_asked_only_where_the_lookup_is_silent() -> None:
    found, asked = Guess(2, 1, False), Guess(LONGEST, 3, True)
    assert rounds.first_of([found, NOTHING], [asked, asked]) == [found, asked]


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, LONGEST))
def test_every_token_is_committed_once(flags: list[bool], length: int) -> None:
    tally = play([from_flags(flags)], length)
    assert tally.committed == len(flags)
    # all accepted tokens and one of the target's own a round, but for a last round that needs none
    assert tally.rounds + sum(tally.accepted) - tally.committed in (0, 1)
    assert all(a >= b for a, b in zip(tally.accepted, tally.accepted[1:], strict=False))
