"""What decoding takes beside what quiet rounds say."""

from __future__ import annotations

import pytest

from gateway.surcharge import MEMORY_TOKENS, PRIOR_TOKENS, Surcharge


def test_quiet_rounds_are_believed_until_others_are_known() -> None:
    surcharge = Surcharge()
    assert surcharge.factor == 1.0
    surcharge.add(1, real_s=10.0, expected_s=1.0)
    assert surcharge.factor == pytest.approx((10 + PRIOR_TOKENS) / (1 + PRIOR_TOKENS))


def test_with_much_measured_it_is_what_was_measured() -> None:
    surcharge = Surcharge()
    for _ in range(20 * PRIOR_TOKENS):
        surcharge.add(1, real_s=0.3, expected_s=0.2)
    assert surcharge.factor == pytest.approx(1.5, rel=0.05)


def test_what_was_long_ago_fades() -> None:
    surcharge = Surcharge()
    for real_s in (0.8, 0.2):
        for _ in range(3 * MEMORY_TOKENS):
            surcharge.add(1, real_s, expected_s=0.2)
    assert surcharge.factor < 1.5


def test_nothing_is_faster_than_quiet_rounds() -> None:
    surcharge = Surcharge()
    surcharge.add(1000, real_s=1.0, expected_s=2.0)
    assert surcharge.factor == 1.0
