"""What else the figures show, in words: how well draft and target match, where time goes, what not to trust."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from forerun.bench.records import Run
from forerun.bench.summary import Cell, Rounds, Summary
from forerun.bench.variants import NGRAM, OFF, parse_variant

MATCH = 0.60  # acceptance below it is a mismatch
RARE = 0.20  # a place in the draft accepted less often is not worth drafting
MORE = 0.40  # a last candidate accepted so often asks for longer drafts
LONG_WAIT = 0.25  # of a round
COSTLY_STEP = 1.25  # times a plain step
FEW = 16  # requests
ENOUGH = 50  # candidates, to speak of their acceptance
MOSTLY_PLAIN = 0.5  # of the rounds had candidates
UNSTEADY = 1.15  # the fastest pass over the slowest
_MISMATCH = (
    ": draft and target are a mismatch for these prompts. A draft trained on the target's own answers, or a larger "
    "one, would be accepted more often"
)
_ORDINALS = {1: "first", 2: "second", 3: "third"}


def findings(run: Run, summary: Summary) -> list[str]:
    """What to know about the draft, the target and the outputs."""
    return [
        *_outputs(run, summary),
        *_drafters(summary),
        *_late(summary),
        *_categories(summary),
        *_costs(summary),
    ]


def caveats(run: Run, summary: Summary) -> list[str]:
    """What makes the figures less sure."""
    return list(_caveats(run, summary))


def _outputs(run: Run, summary: Summary) -> Iterator[str]:
    compared = sum(cell.compared for cell in summary.cells.values())
    different = compared - sum(cell.identical for cell in summary.cells.values())
    if compared and not different:
        yield f"Lossless: all {compared} outputs are token for token those of plain decoding."
    elif compared:
        plain = sum(cell.compared - cell.identical for cell in summary.cells.values() if cell.variant == OFF)
        exact = {deployment.dtype for deployment in run.deployments if not deployment.failure} == {"float32"}
        why = (
            "In float32 on one device they must be equal, so please report this as a bug."
            if exact
            else "Outside of float32, batches of another shape can turn near-ties; plain decoding differs from itself "
            f"in {plain} of them."
        )
        yield f"{different} of {compared} outputs differ from the first plain one of the same prompt. {why}"


def _drafters(summary: Summary) -> Iterator[str]:
    """One sentence or two a drafter, at the lowest load that shows enough of its candidates, of its longest drafts."""
    by_drafter: dict[str, list[Cell]] = defaultdict(list)
    for name in summary.speculating:
        cells = [cell for cell in summary.of(name) if cell.rounds.drafted >= ENOUGH]
        if cells:
            by_drafter[parse_variant(name).drafter].append(cells[0])
    explained = False
    for drafter, cells in by_drafter.items():
        rates = sorted(cell.rounds.acceptance or 0.0 for cell in cells)
        shown = f"{rates[0]:.0%}" if f"{rates[0]:.0%}" == f"{rates[-1]:.0%}" else f"{rates[0]:.0%} to {rates[-1]:.0%}"
        length = _useful_length(cells)
        if rates[-1] >= MATCH:
            yield f"{drafter}: {shown} of the candidates are accepted; draft and target match well.{length}"
            continue
        advice = ""
        if drafter == NGRAM:
            advice = ": the text seldom repeats itself. It pays where answers copy from the prompt"
        elif not explained:
            advice, explained = _MISMATCH, True
        yield f"{drafter}: {shown} of the candidates are accepted, under {MATCH:.0%}{advice}.{length}"


def _useful_length(cells: list[Cell]) -> str:
    longest = max(cells, key=lambda cell: len(cell.rounds.rates))
    useful = sum(rate >= RARE for rate in longest.rounds.rates)
    if useful == len(longest.rounds.rates):
        last = longest.rounds.rates[-1]
        return f" The last of {useful} is still accepted {last:.0%} of the time: measure longer drafts." * (
            last >= MORE
        )
    place = _ORDINALS.get(useful + 1, f"{useful + 1}th")
    advice = f"a draft length of {useful} loses little" if useful else "even a draft length of 1 is seldom of use"
    return f" Its {place} candidate is accepted in fewer than one round in {1 / RARE:.0f}: {advice}."


def _categories(summary: Summary) -> Iterator[str]:
    for name in summary.speculating:
        known = {
            category: rounds.acceptance
            for (variant, category), rounds in summary.by_category.items()
            if variant == name and rounds.drafted >= ENOUGH
        }
        rates = {category: rate for category, rate in known.items() if rate is not None}
        if len(rates) < 2:
            continue
        best, worst = max(rates, key=lambda key: rates[key]), min(rates, key=lambda key: rates[key])
        if rates[best] - rates[worst] >= 0.10:
            yield f"{name} is accepted most in {best} ({rates[best]:.0%}) and least in {worst} ({rates[worst]:.0%})."
            return  # one is enough here: the table has them all


def _late(summary: Summary) -> Iterator[str]:
    shares = {
        name: cells[0].rounds.with_candidates
        for name in summary.speculating
        if (cells := summary.of(name)) and cells[0].rounds.drafted
    }
    if shares and min(shares.values()) < MOSTLY_PLAIN:
        name = min(shares, key=lambda key: shares[key])
        yield (
            f"With {name} only {shares[name]:.0%} of the rounds had candidates: the draft had none, the target found "
            "that waiting for them does not pay, or the gateway, left to choose, chose plain rounds."
        )


def _costs(summary: Summary) -> Iterator[str]:
    waits, steps = [], []
    for name in summary.speculating:
        for cell in summary.of(name)[:1]:
            plain = summary.cells.get((OFF, cell.load))
            waits += [(_share(cell.rounds), name)]
            if plain is not None and plain.rounds.step_ms:
                steps += [(cell.rounds.step_ms / plain.rounds.step_ms, name)]
    if waits and max(waits)[0] > LONG_WAIT:
        share, name = max(waits)
        yield (
            f"With {name} the target spends {share:.0%} of a round waiting for candidates: give the draft a device of "
            "its own, let it run ahead (--window), or shorten the draft."
        )
    if steps and max(steps)[0] > COSTLY_STEP:
        ratio, name = max(steps)
        yield f"Verifying is not free here: with {name} a step takes {ratio:.2f} times as long as a plain one."


def _share(rounds: Rounds) -> float:
    return rounds.wait_ms / rounds.round_ms if rounds.round_ms else 0.0


def _caveats(run: Run, summary: Summary) -> Iterator[str]:
    if not run.complete:
        yield "The run was interrupted: some variants or loads are missing or have fewer requests."
    for deployment in run.deployments:
        if deployment.failure:
            yield f"{deployment.drafter} could not be measured: {deployment.failure.splitlines()[0]}"
    failed = sum(summary.errors.values())
    if failed:
        yield f"{failed} requests failed and count in no figure: {'; '.join(_counted(summary.errors))}."
    few = [cell.requests for cell in summary.cells.values() if cell.requests < FEW]
    if few:
        yield (
            f"Some figures rest on {min(few)} requests only: p95 and p99 are then close to the slowest one, and the "
            "ranges are wide. Raise --requests before you decide by a small difference."
        )
    paces = [cell.throughput_range for cell in summary.cells.values()]
    unsteady = max((high / low for low, high in paces if low), default=1.0)
    if unsteady > UNSTEADY:
        yield f"Passes of one variant differ by up to {unsteady - 1:.0%} in throughput: prompts and machine vary."
    busy, cores = run.machine.get("busy_cores", 0.0), run.machine.get("cores", 1)
    if busy > 0.25 * cores:
        yield f"The machine was busy when the run began: {busy:.1f} of its {cores} cores had other work."


def _counted(errors: dict[str, int]) -> list[str]:
    return [f"{message} ({count} times)" for message, count in errors.items()]
