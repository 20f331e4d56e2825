"""Says in words which variant to run at which load, when speculation should be off, and why.

The rule: a variant is worth running where it is at least 2 % faster than `off` beside it and the 95 % range of that
speed-up lies above 1. Where that is not so, plain decoding is simpler and is what to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from forerun.bench.findings import MOSTLY_PLAIN
from forerun.bench.load import Load
from forerun.bench.records import Run
from forerun.bench.stats import Estimate
from forerun.bench.summary import Cell, Summary
from forerun.bench.variants import NGRAM, OFF, parse_variant

WORTH = 1.02
AS_GOOD = 0.98  # of the fastest


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run at one load. `pick` is a variant, or `off`."""

    load: Load
    pick: str
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """The headline, and the choice at each load."""

    headline: str
    choices: tuple[Choice, ...]


def advise(summary: Summary) -> Advice:
    """What to do, from what was measured."""
    if not summary.cells:
        return Advice("Nothing was measured.", ())
    choices = tuple(_choose(summary, load) for load in summary.loads)
    return Advice(_headline(summary, choices), choices)


def _choose(summary: Summary, load: Load) -> Choice:
    cells = [cell for cell in summary.at(load) if cell.tokens]
    if not cells:
        return Choice(load, OFF, "no request was answered")
    plain = next((cell for cell in cells if cell.variant == OFF), None)
    speculating = [cell for cell in cells if cell.variant != OFF]
    if plain is None:
        fastest = max(speculating, key=lambda cell: cell.throughput)
        reason = (
            f"the fastest of those measured, at {fastest.throughput:.1f} tok/s; without off, nothing says that it pays"
        )
        return Choice(load, fastest.variant, reason)
    rated = [(cell, cell.speedup) for cell in speculating if cell.speedup is not None]
    if not rated:
        return Choice(load, OFF, "nothing else was measured")
    best, speedup = max(rated, key=lambda pair: pair[1].value)
    if speedup.value >= WORTH and speedup.low > 1:
        return Choice(load, best.variant, _gain(best, speedup, plain, rated))
    return Choice(load, OFF, _loss(best, speedup, plain))


def _gain(best: Cell, speedup: Estimate, plain: Cell, rated: Sequence[tuple[Cell, Estimate]]) -> str:
    as_good = [cell.variant for cell, other in rated if cell is not best and other.value >= AS_GOOD * speedup.value]
    also = f"; {' and '.join(as_good)} {'is' if len(as_good) == 1 else 'are'} as good" if as_good else ""
    return f"{times(speedup)} as fast as off, because {_balance(best, plain, 'and takes only')}{also}"


def _loss(best: Cell, speedup: Estimate, plain: Cell) -> str:
    if speedup.value >= WORTH:
        return (
            f"the best variant, {best.variant}, looks {times(speedup)} as fast, but the range includes 1: "
            "measure more requests before you trust it"
        )
    if speedup.high >= 1 and speedup.value > 2 - WORTH:
        return f"the best variant, {best.variant}, is no faster: {times(speedup)}; off needs no draft"
    why = _balance(best, plain, "but takes")
    return f"even the best variant, {best.variant}, runs at {times(speedup)} the speed, because {why}"


def _balance(cell: Cell, plain: Cell, contrast: str) -> str:
    """Tokens a round against the time of a round: the whole economy of speculation, in one sentence."""
    gained = f"a round commits {cell.rounds.mean_length:.2f} tokens"
    if not plain.rounds.round_ms or not cell.rounds.round_ms:
        return gained
    ours, theirs = cell.rounds, plain.rounds
    longer = ours.round_ms - theirs.round_ms
    if longer <= 0.02 * theirs.round_ms:
        return f"{gained} in the time of a plain one ({theirs.round_ms:.1f} ms)"
    few = ours.with_candidates < MOSTLY_PLAIN
    step = "the longer step (few had a draft to verify)" if few else "the longer step that verifies the draft"
    parts = {
        "waiting for the draft": ours.wait_ms - theirs.wait_ms,
        step: ours.step_ms - theirs.step_ms,
        "what lies between the steps (hops, turns with other requests)": ours.other_ms - theirs.other_ms,
    }
    cause = max(parts, key=lambda name: parts[name])
    return (
        f"{gained} {contrast} {ours.round_ms / theirs.round_ms:.2f} times as long as a plain one "
        f"({ours.round_ms:.1f} ms instead of {theirs.round_ms:.1f}); most of the difference is {cause}, "
        f"{parts[cause]:.1f} ms"
    )


def _headline(summary: Summary, choices: Sequence[Choice]) -> str:
    picks = {choice.pick for choice in choices}
    if OFF not in summary.variants:
        return f"Plain decoding (off) was not measured, so nothing here says that speculation pays. {_ranges(choices)}"
    if not summary.speculating:
        return "Only plain decoding was measured; there is nothing to compare it with."
    if picks == {OFF}:
        where = "at any measured load" if len(choices) > 1 else f"at {choices[0].load.label}"
        return f"Turn speculation off: no variant is clearly faster than plain decoding {where}."
    if len(picks) == 1:
        where = "at every measured load" if len(choices) > 1 else f"at {choices[0].load.label}"
        return f"Run {choices[0].pick}: it is the fastest {where}."
    return _ranges(choices)


def _ranges(choices: Sequence[Choice]) -> str:
    """`Run model:4 at concurrency 1 to 4; turn speculation off at concurrency 16.`"""
    parts = []
    for (pick, _), group in groupby(choices, key=lambda choice: (choice.pick, bool(choice.load.rate))):
        loads = [choice.load for choice in group]
        where = loads[0].label if len(loads) == 1 else f"{loads[0].label} to {loads[-1].short}"
        parts.append(f"turn speculation off at {where}" if pick == OFF else f"run {pick} at {where}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def times(speedup: Estimate) -> str:
    """`1.42 times (1.31 to 1.55)`."""
    return f"{speedup.value:.2f} times ({speedup.low:.2f} to {speedup.high:.2f})"


def command(run: Run, advice: Advice) -> str:
    """The command that runs what is advised, by level of concurrency; empty if one set of services cannot."""
    closed = [choice for choice in advice.choices if choice.load.concurrency]
    picks = [parse_variant(choice.pick) for choice in closed]
    drafters = {pick.drafter for pick in picks if pick.speculates}
    if not closed or len(drafters) > 1 or OFF not in run.variants:
        return ""
    if not drafters:
        return "forerun up --draft none"
    up = f"forerun up --draft {_draft_name(run, drafters.pop())}"
    lengths = [pick.draft_length if pick.speculates else 0 for pick in picks]
    if None in lengths:  # the gateway chooses
        return up
    if len(set(lengths)) == 1:
        return f"{up} --draft-length {lengths[0]}"
    table = ",".join(f"{choice.load.concurrency}:{length}" for choice, length in zip(closed, lengths, strict=True))
    return f"FORERUN_GATEWAY_DRAFT_LENGTH_BY_BATCH={table} {up}"


def _draft_name(run: Run, drafter: str) -> str:
    served = next((one.draft for one in run.deployments if drafter in (one.drafter, one.draft) and one.draft), "")
    name = served or next((one.draft for one in run.deployments if one.draft), drafter)
    prefix = f"{NGRAM}+"
    return f"{prefix}{name.removeprefix(prefix)}" if drafter.startswith(prefix) else name
