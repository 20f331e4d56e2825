"""From a measurement to words: whether to speculate with this pair, how far ahead, and if not, why not. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from draft_service.check_pair.measurement import BOTH, MODEL, NGRAM, Expectation, Measurement

MISMATCH = 0.60  # first candidates accepted less often than this: the two do not belong together
HEALTHY = 0.70
WORTH = 1.05  # times plain; less is within what one machine varies by
AS_GOOD = 0.98  # of the best: close enough to prefer the drafter without weights, or the shorter draft
UNSTEADY = 1.5  # slow steps over quick ones of the same kind
COSTLY_VERIFY = 2.0  # plain steps for the target to check one candidate


@dataclass(frozen=True, slots=True)
class Advice:
    """What to run. Not speculating is draft length 0 without a drafter."""

    speculate: bool
    drafter: str | None
    draft_length: int
    ratio: float
    words: tuple[str, ...]


def advise(measured: Measurement) -> Advice:
    """The fastest drafter and length that pay, or the reasons why none does."""
    expected = measured.expectations()
    best = _best(expected)
    ngram = _best([one for one in expected if one.drafter == NGRAM])
    pick = ngram if ngram.ratio >= AS_GOOD * best.ratio else best
    words = [*_acceptance(measured), *_costs(measured)]
    if pick.ratio < WORTH:
        words += [*_reasons(measured, best), *_ngram_too(measured, ngram)]
        return Advice(False, None, 0, 1.0, tuple(words))
    words += [_verdict(pick), *_ngram_too(measured, ngram)]
    return Advice(True, pick.drafter, pick.draft_length, pick.ratio, tuple(words))


def _best(expected: list[Expectation]) -> Expectation:
    """The fastest; a shorter draft of the same drafter where that is as good."""
    fastest = max(expected, key=lambda one: one.ratio)
    same = [one for one in expected if one.drafter == fastest.drafter and one.ratio >= AS_GOOD * fastest.ratio]
    return min(same, key=lambda one: one.draft_length)


def _first_accepted(measured: Measurement) -> float | None:
    """How often a model's first candidate is the target's token."""
    return measured.asked.acceptance[0] if MODEL in measured.tallies else None


def _acceptance(measured: Measurement) -> Iterator[str]:
    first = _first_accepted(measured)
    if first is None:
        return
    if first < MISMATCH:
        yield (
            f"Acceptance is low: the draft's first candidate is the target's token {first:.0%} of the time, and under "
            f"{MISMATCH:.0%} is a mismatch. Use a draft that was trained on this target's answers or is of its family "
            "and tuning; a draft of a base model seldom suits a chat model."
        )
    elif first <= HEALTHY:
        yield f"Acceptance is fair: the first candidate is accepted {first:.0%} of the time ({HEALTHY:.0%} is healthy)."
    else:
        yield f"Acceptance is healthy: the first candidate is accepted {first:.0%} of the time."


def _costs(measured: Measurement) -> Iterator[str]:
    longest = max(measured.verify_ms)
    yield (
        f"A plain step of the target takes {measured.plain_ms:.1f} ms; one that checks {longest - 1} candidates takes "
        f"{measured.verify(longest) / measured.plain_ms:.2f} times that."
    )
    if measured.draft_ms is not None:
        share = measured.draft_ms / measured.plain_ms
        yield f"A step of the draft takes {measured.draft_ms:.1f} ms, {share:.0%} of a plain step of the target."
    if measured.unsteadiness > UNSTEADY:
        yield (
            f"The machine is busy: steps of one kind differ by a factor of {measured.unsteadiness:.1f}, so take what "
            "is said of speed as a guess, and measure again when it is quiet."
        )


def _verdict(pick: Expectation) -> str:
    return (
        f"Speculate with {_name(pick.drafter)} and --draft-length {pick.draft_length}: {pick.mean_accepted_length:.2f} "
        f"tokens a round, about {pick.ratio:.2f} times as fast as plain decoding for one request at a time."
    )


def _reasons(measured: Measurement, best: Expectation) -> Iterator[str]:
    yield (
        f"Do not speculate with this pair here: the best that can be expected is {best.ratio:.2f} times plain decoding "
        f"(draft length {best.draft_length}), and less than {WORTH:.2f} is not worth it."
    )
    if MODEL not in measured.tallies:
        yield "The text so far seldom holds what comes next; a draft model may guess more."
        return
    free = max(measured.ratio(tally, 0.0) for tally in measured.tallies[MODEL].values())
    if measured.verify(2) > COSTLY_VERIFY * measured.plain_ms:
        yield "Verifying is too costly: checking a single candidate takes the target more than two plain steps."
    elif free < WORTH:
        yield f"Too few candidates are accepted: a draft that cost nothing would reach only {free:.2f} times plain."
    else:
        yield (
            f"The draft is too slow: if its steps cost nothing it would reach {free:.2f} times plain. Try a "
            f"smaller one, --draft-vocabulary, or a device of its own; {_slowest(measured)}"
        )


def _slowest(measured: Measurement) -> str:
    """The draft step at which speculation would begin to pay."""
    lengths = measured.tallies[MODEL].values()
    pays = max((ms for ms in _steps(measured) if any(measured.ratio(t, ms) >= WORTH for t in lengths)), default=0.0)
    return f"from {pays:.1f} ms a step on it would pay." if pays else "no step is quick enough."


def _steps(measured: Measurement) -> Iterator[float]:
    assert measured.draft_ms is not None
    for share in range(1, 100):
        yield measured.draft_ms * share / 100


def _ngram_too(measured: Measurement, ngram: Expectation) -> Iterator[str]:
    """Whether the lookup alone would do."""
    if MODEL not in measured.tallies:
        return
    models = [one for one in measured.expectations() if one.drafter in (MODEL, BOTH)]
    best = _best(models)
    told = f"{ngram.ratio:.2f} times plain at draft length {ngram.draft_length}"
    if ngram.ratio < WORTH:
        yield f"ngram alone, which needs no weights, would not pay on these prompts ({told})."
    elif ngram.ratio >= AS_GOOD * best.ratio:
        yield f"ngram alone would do: {told}, without a draft model ({best.ratio:.2f} with it)."
    else:
        yield f"ngram alone, which needs no weights, would give {told}."


def _name(drafter: str) -> str:
    return {MODEL: "the draft model", NGRAM: "ngram", BOTH: "ngram before the draft model"}[drafter]
