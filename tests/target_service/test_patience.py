"""Patience: waiting only while it can pay, none for a draft known to be late, and a probe now and then."""

from __future__ import annotations

from target_service.patience import PROBE_EVERY, Patience

LIMIT_S = 1.0


def measured(plain_s: float = 0.010, verify_s: float = 0.012, committed: int = 3) -> Patience:
    """Patience that has seen many plain and verifying steps of a batch of one."""
    patience = Patience(LIMIT_S)
    for _ in range(200):
        patience.record_step(1, False, plain_s)
        patience.record_step(1, True, verify_s)
        patience.record_round(committed)
    return patience


def test_unmeasured_it_waits_as_long_as_it_may() -> None:
    assert Patience(LIMIT_S).seconds(1, 0) == LIMIT_S


def test_it_waits_no_longer_than_what_candidates_save() -> None:
    assert abs(measured().seconds(1, 0) - (3 * 0.010 - 0.012)) < 1e-6


def test_it_waits_for_nothing_when_verifying_saves_nothing() -> None:
    assert measured(committed=1).seconds(1, 0) == 0.0


def test_the_operators_limit_binds() -> None:
    assert measured(plain_s=10.0, verify_s=10.0).seconds(1, 0) == LIMIT_S


def test_a_limit_of_zero_never_waits() -> None:
    patience = Patience(0.0)
    assert patience.seconds(1, PROBE_EVERY) == 0.0


def test_a_draft_known_to_be_late_is_not_waited_for_but_probed() -> None:
    patience = measured()
    for _ in range(50):
        patience.record_arrival(0.5)
    assert patience.seconds(1, 0) == 0.0
    assert patience.seconds(1, PROBE_EVERY) > 0.0


def test_where_it_pays_it_waits_somewhat_longer_than_candidates_take() -> None:
    patience = measured()
    patience.record_arrival(0.018)
    assert patience.seconds(1, 0) > 0.018


def test_a_probe_costs_a_step_at_most_however_late_candidates_were() -> None:
    patience = measured(committed=1)
    patience.record_arrival(0.9)
    assert patience.seconds(1, PROBE_EVERY) == 0.010


def test_a_draft_that_never_said_anything_is_not_waited_for_once_a_step_was_measured() -> None:
    patience = Patience(LIMIT_S)
    patience.record_expiry(LIMIT_S)
    patience.record_step(1, False, 0.010)
    assert patience.seconds(1, 0) == 0.0
    assert patience.seconds(1, PROBE_EVERY) <= 0.015 + 1e-9


def test_it_probes_even_where_verifying_saved_nothing() -> None:
    patience = measured(committed=1)
    patience.record_arrival(0.005)
    assert patience.seconds(1, 0) == 0.0
    assert patience.seconds(1, PROBE_EVERY) > 0.005


def test_a_draft_that_became_quick_is_waited_for_again() -> None:
    patience = measured()
    patience.record_arrival(0.5)
    for _ in range(50):
        patience.record_arrival(0.001)
    assert patience.seconds(1, 0) > 0.0


def test_waiting_in_vain_counts_as_lateness_once_it_is_the_worst_known() -> None:
    patience = measured()
    patience.record_expiry(0.018)
    assert patience.seconds(1, 0) == 0.0


def test_batches_of_other_sizes_are_measured_apart() -> None:
    patience = measured()
    patience.record_step(8, False, 0.1)
    patience.record_step(8, True, 0.1)
    assert patience.seconds(8, 0) > 2 * patience.seconds(1, 0)
