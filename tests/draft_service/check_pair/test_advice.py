"""The words follow the numbers: acceptance, the cost of verifying, the cost of drafting, and the lookup alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from draft_service.check_pair.advice import Advice, advise
from draft_service.check_pair.measurement import BOTH, MODEL, NGRAM, Measurement
from draft_service.check_pair.rounds import LONGEST, Guess, first_of, from_flags, play

CHEAP: Mapping[int, float] = {1: 50.0, 2: 51.0, 3: 52.0, 5: 54.0, 7: 56.0, 9: 58.0}
DEAR: Mapping[int, float] = {1: 50.0, 2: 120.0, 3: 180.0, 5: 300.0, 7: 400.0, 9: 500.0}
GOOD = [True, True, True, True, False] * 20  # of every five tokens four are guessed
FAIR = [True, True, False] * 33
POOR = [False, False, True] * 33


def measured(
    flags: list[bool],
    draft_ms: float = 3.0,
    verify_ms: Mapping[int, float] = CHEAP,
    lookup: Guess | None = None,
    unsteadiness: float = 1.0,
) -> Measurement:
    """A pair whose draft is right where the flags say so; the lookup says the same everywhere."""
    model = from_flags(flags)
    found = [lookup or Guess(0, 0, False)] * len(flags)
    tracks = {NGRAM: found, MODEL: model, BOTH: first_of(found, model)}
    tallies = {name: {k: play([track], k) for k in range(1, LONGEST + 1)} for name, track in tracks.items()}
    return Measurement(4, tallies, verify_ms, draft_ms, unsteadiness)


def said(advice: Advice) -> str:
    return " ".join(advice.words)


def test_a_good_draft_is_recommended_with_the_length_that_is_fastest() -> None:
    advice = advise(measured(GOOD))
    assert advice.speculate and advice.drafter == MODEL
    assert advice.draft_length == 4  # the fifth candidate is always wrong
    assert advice.ratio == pytest.approx(5 * 50 / (4 * 3 + 54 + 1.5))
    assert "--draft-length 4: 5.00 tokens a round, about 3.70 times" in said(advice)
    assert "healthy: the first candidate is accepted 100%" in said(advice)


def test_under_sixty_percent_is_called_a_mismatch() -> None:
    assert "mismatch" in said(advise(measured(POOR)))
    assert "mismatch" not in said(advise(measured(GOOD)))
    fair = [True, True, False, True, False, False] * 20  # two of three rounds begin with a right candidate
    assert "Acceptance is fair" in said(advise(measured(fair)))


def test_a_verify_step_that_costs_two_plain_ones_is_the_reason_not_to() -> None:
    advice = advise(measured(FAIR, verify_ms=DEAR))
    assert (advice.speculate, advice.drafter, advice.draft_length, advice.ratio) == (False, None, 0, 1.0)
    assert "Verifying is too costly" in said(advice)


def test_a_slow_draft_is_the_reason_and_is_told_when_it_would_pay() -> None:
    advice = advise(measured(FAIR, draft_ms=60.0))
    assert not advice.speculate
    assert "draft is too slow" in said(advice) and "ms a step on it would pay" in said(advice)


def test_too_little_accepted_is_the_reason_where_even_a_free_draft_would_not_pay() -> None:
    advice = advise(measured([False] * 50))
    assert not advice.speculate
    assert "Too few candidates are accepted" in said(advice) and "too slow" not in said(advice)


def test_the_lookup_alone_is_preferred_where_it_does_as_well() -> None:
    advice = advise(measured(FAIR, draft_ms=10.0, lookup=Guess(LONGEST, 4, False)))
    assert advice.drafter == NGRAM and "ngram alone would do" in said(advice)
    assert "ngram alone, which needs no weights, would not pay" in said(advise(measured(GOOD)))


def test_a_pair_without_a_model_is_judged_by_its_lookup() -> None:
    whole = measured(GOOD, lookup=Guess(LONGEST, 4, False))
    alone = Measurement(4, {NGRAM: whole.tallies[NGRAM]}, CHEAP, None)
    advice = advise(alone)
    assert advice.drafter == NGRAM and "step of the draft" not in said(advice)
    nothing = Measurement(4, {NGRAM: measured(GOOD).tallies[NGRAM]}, CHEAP, None)
    assert "seldom holds what comes next" in said(advise(nothing))


def test_a_busy_machine_is_mentioned() -> None:
    assert "machine is busy" in said(advise(measured(GOOD, unsteadiness=2.0)))
    assert "machine is busy" not in said(advise(measured(GOOD)))


def test_steps_between_measured_sizes_lie_on_a_line() -> None:
    pair = measured(GOOD)
    assert pair.verify(4) == pytest.approx(53.0)
    assert (pair.verify(9), pair.verify(20)) == (58.0, 58.0)
