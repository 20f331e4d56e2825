"""The tables of a report: every figure, a row a variant and load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forerun.bench.advice import Advice
from forerun.bench.load import Load
from forerun.bench.records import Run
from forerun.bench.report.svg import escape
from forerun.bench.stats import Spread
from forerun.bench.summary import Cell, Summary

_NONE = "–"  # noqa: RUF001
_MIB = 1 << 20


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], groups: Sequence[tuple[str, int]] = ()) -> str:
    """An HTML table. `groups` are headings over several columns; cells are text."""
    over = "".join(f'<th colspan="{width}" class="over">{escape(name)}</th>' for name, width in groups)
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    first = f"<tr>{over}</tr>" if over else ""
    return f'<div class="wide"><table><thead>{first}<tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def speed(summary: Summary, advice: Advice) -> str:
    """Throughput, pace and failures; what is advised is marked."""
    picks = {(choice.load, choice.pick) for choice in advice.choices}
    groups = [("", 2), ("throughput, tok/s", 2), ("", 1), ("TPOT, ms", 3), ("requests", 2)]
    heads = ["load", "variant", "all", "over passes", "× off (95 %)", "p50", "p95", "p99", "done", "failed"]  # noqa: RUF001
    return table(heads, (_speed_row(cell, picks) for cell in _cells(summary)), groups)


def _speed_row(cell: Cell, picks: set[tuple[Load, str]]) -> list[str]:
    ratio = cell.speedup
    return [
        cell.load.label,
        f"{cell.variant} ◂ run" if (cell.load, cell.variant) in picks else cell.variant,
        f"{cell.throughput:.1f}",
        f"{cell.throughput_range[0]:.1f} to {cell.throughput_range[1]:.1f}",
        f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else _NONE,
        *_quantiles(cell.tpot, 1e3),
        str(cell.requests),
        str(cell.errors),
    ]


def latencies(summary: Summary) -> str:
    """What a request and a token wait for."""
    metrics = ["TTFT, ms", "inter-token latency, ms", "gap between chunks, ms", "request latency, s"]
    groups = [("", 2), *((metric, 3) for metric in metrics)]
    heads = ["load", "variant", *(["p50", "p95", "p99"] * 4)]
    rows = (
        [
            cell.load.label,
            cell.variant,
            *_quantiles(cell.ttft, 1e3),
            *_quantiles(cell.itl, 1e3),
            *_quantiles(cell.gap, 1e3),
            *_quantiles(cell.latency, 1),
        ]
        for cell in _cells(summary)
    )
    return table(heads, rows, groups)


def candidates(summary: Summary) -> str:
    """What became of the drafts."""
    heads = ["load", "variant", "rounds with candidates", "accepted", "by position, %", "drafted, unused"]
    heads += ["tokens a round", "same output as off"]
    return table(heads, (_candidates_row(cell) for cell in _cells(summary)))


def _candidates_row(cell: Cell) -> list[str]:
    rounds = cell.rounds
    return [
        cell.load.label,
        cell.variant,
        f"{rounds.with_candidates:.0%}" if rounds.drafted else _NONE,
        _percent(rounds.acceptance),
        " ".join(f"{rate * 100:.0f}" for rate in rounds.rates) or _NONE,
        _percent(unused(cell)),
        f"{rounds.mean_length:.2f}",
        f"{cell.identical} of {cell.compared}" if cell.compared else _NONE,
    ]


def rounds(summary: Summary) -> str:
    """Where the time of a round went."""
    groups = [("", 2), ("a round, ms", 5), ("", 2)]
    heads = ["load", "variant", "whole", "target's step", "waiting", "the rest", "drafting*"]
    heads += ["share waiting", "requests at once"]
    return table(heads, (_rounds_row(cell) for cell in _cells(summary)), groups)


def _rounds_row(cell: Cell) -> list[str]:
    spent = cell.rounds
    times = (spent.round_ms, spent.step_ms, spent.wait_ms, spent.other_ms, spent.draft_ms)
    return [
        cell.load.label,
        cell.variant,
        *(f"{value:.1f}" for value in times),
        f"{spent.wait_ms / (spent.round_ms or 1.0):.0%}",
        f"{cell.in_flight:.1f}",
    ]


def unused(cell: Cell) -> float | None:
    """The share of the draft's work that no round verified: proposals thrown away by a rollback or at the end."""
    proposed = cell.counters.get("draft.drafted_tokens", 0)
    return max(0.0, 1 - cell.rounds.drafted / proposed) if proposed and cell.rounds.drafted else None


def categories(summary: Summary) -> str:
    """Acceptance and tokens a round by kind of prompt, darker where more is accepted."""
    names = summary.categories
    rows = []
    for variant in summary.speculating:
        cells = [summary.by_category.get((variant, name)) for name in names]
        if not any(cell is not None and cell.drafted for cell in cells):
            continue
        shown = "".join(
            f'<td class="heat" style="--heat:{cell.acceptance:.2f}">{cell.acceptance:.0%} '
            f"<small>{cell.mean_length:.2f}</small></td>"
            if cell is not None and cell.acceptance is not None
            else f"<td>{_NONE}</td>"
            for cell in cells
        )
        rows.append(f"<tr><td>{escape(variant)}</td>{shown}</tr>")
    if not rows or not names:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in ("variant", *names))
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table class="heatmap">{body}</table></div>'


def memory(summary: Summary) -> str:
    """Memory of the services and of the GPUs. Empty if none could be read."""
    rows = []
    for cell in _cells(summary):
        services = [f"{name} {size / _MIB:.0f}" for name, size in sorted(cell.pss_bytes.items())]
        total = sum(cell.pss_bytes.values()) / _MIB
        gpus = [f"{gpu.name}: {gpu.used_mib} MiB, {gpu.utilisation:.0%} busy" for gpu in cell.gpus]
        if services or gpus:
            shown = f"{total:.0f}" if services else _NONE
            rows.append([cell.load.label, cell.variant, shown, ", ".join(services) or _NONE, "; ".join(gpus) or _NONE])
    return table(["load", "variant", "all services, MiB", "each, MiB (PSS)", "GPU"], rows) if rows else ""


def settings(run: Run) -> str:
    """What was run, on what."""
    rows = [_setting(name, value) for name, value in {**run.settings, **run.machine}.items()]
    rows += [[f"version of {name}", version] for name, version in run.versions.items()]
    for deployment in run.deployments:
        what = deployment.failure or f"draft {deployment.draft or 'none'}, target {deployment.target}"
        where = "" if deployment.failure else f", {deployment.dtype}, {deployment.device}"
        rows.append([f"services for {deployment.drafter or 'off'}", what + where])
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<table class="settings"><tbody>{body}</tbody></table>'


def _setting(name: str, value: object) -> list[str]:
    if name.endswith("_bytes") and isinstance(value, int):
        return [name.removesuffix("_bytes").replace("_", " "), f"{value / _MIB:,.0f} MiB"]
    return [name.replace("_", " "), _shown(value)]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _cells(summary: Summary) -> list[Cell]:
    return [cell for load in summary.loads for cell in summary.at(load)]


def _quantiles(found: Spread | None, factor: float) -> list[str]:
    if found is None:
        return [_NONE] * 3
    digits = 2 if factor == 1 else 1
    return [f"{value * factor:.{digits}f}" for value in (found.p50, found.p95, found.p99)]


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0%}"
