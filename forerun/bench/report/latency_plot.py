"""The plot of latencies: time to first token, inter-token latency and whole requests, a row a variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forerun.bench.report.series import Series
from forerun.bench.report.svg import WIDTH, Frame, Scale, drawing, line, named, nice_ticks, tag, text, title
from forerun.bench.stats import Spread
from forerun.bench.summary import Cell, Summary

_ROW = 20.0
_NAMES = 150.0  # room for the variants' names
_GAP = 34.0
_PANEL = (WIDTH - _NAMES - 2 * _GAP - 16) / 3
_MAX_DOTS = 80

_METRICS: tuple[tuple[str, str, float, Callable[[Cell], Spread | None]], ...] = (
    ("time to first token, ms", "ms", 1e3, lambda cell: cell.ttft),
    ("inter-token latency, ms", "ms", 1e3, lambda cell: cell.itl),
    ("request latency, s", "s", 1.0, lambda cell: cell.latency),
)


def latencies(summary: Summary, series: Mapping[str, Series]) -> str:
    """Three panels a load. The line goes from the least to p99, the box from p25 to p75, marks are p50 and p95."""
    parts, y = _key(), 52.0
    for load in summary.loads:
        cells = [cell for cell in summary.at(load) if cell.latency is not None]
        if not cells:
            continue
        parts += [text(0, y - 6, load.label, "strong")]
        for index in range(len(_METRICS)):
            parts += _panel(cells, series, index, y)
        for row, cell in enumerate(cells):
            parts += [named(_NAMES - 10, y + row * _ROW + _ROW / 2 + 4, cell.variant, _NAMES - 10, "end")]
        y += len(cells) * _ROW + 74
    return drawing(y - 20, *parts, label="Latencies by variant and load") if y > 52 else ""


def _key() -> list[str]:
    y = 14.0
    return [
        line(_NAMES, y, _NAMES + 90, y, "range s0"),
        tag("rect", x=_NAMES + 20, y=y - 5, width=30.0, height=10.0, class_="box s0"),
        tag("line", x1=_NAMES + 33, y1=y - 7, x2=_NAMES + 33, y2=y + 7, class_="median s0"),
        tag("circle", cx=_NAMES + 70, cy=y, r=3.5, class_="mark s0"),
        text(
            _NAMES + 100, y + 4,
            "line: least to p99 · box: middle half · bar: p50 · dot: p95 · faint dots: single requests", "note",
        ),
    ]  # fmt: skip


def _panel(cells: list[Cell], series: Mapping[str, Series], index: int, y: float) -> list[str]:
    label, unit, factor, metric = _METRICS[index]
    left = _NAMES + index * (_PANEL + _GAP)
    spreads = [metric(cell) for cell in cells]
    high = max((found.p99 for found in spreads if found is not None), default=0.0) * factor or 1.0
    bottom = y + len(cells) * _ROW
    frame = Frame(Scale(0, high * 1.05, left, left + _PANEL), Scale(0, 1, bottom, y))
    frame.axis_x(nice_ticks(0, high * 1.05, 4), label)
    for row, (cell, found) in enumerate(zip(cells, spreads, strict=True)):
        middle = y + row * _ROW + _ROW / 2
        look = series[cell.variant]
        if unit == "s" and len(cell.latencies) <= _MAX_DOTS:
            inside = (value for value in cell.latencies if value <= high * 1.05)
            frame.parts += [tag("circle", cx=frame.x(v), cy=middle, r=2.2, class_=f"faint {look.css}") for v in inside]
        if found is not None:
            frame.parts += [_spread(frame, found, factor, unit, middle, look)]
    return frame.parts


def _spread(frame: Frame, found: Spread, factor: float, unit: str, y: float, look: Series) -> str:
    low, p25, p50, p75, p95, p99 = (
        frame.x(value * factor) for value in (found.low, found.p25, found.p50, found.p75, found.p95, found.p99)
    )
    hint = " · ".join(
        f"{name} {value * factor:.3g} {unit}"
        for name, value in (("p50", found.p50), ("p95", found.p95), ("p99", found.p99), ("mean", found.mean))
    )
    return tag(
        "g",
        title(f"{look.name}: {hint}"),
        line(low, y, p99, y, f"range {look.css}"),
        tag("rect", x=p25, y=y - 5, width=max(p75 - p25, 1.0), height=10.0, class_=f"box {look.css}"),
        line(p50, y - 7, p50, y + 7, f"median {look.css}"),
        tag("circle", cx=p95, cy=y, r=3.5, class_=f"mark {look.css}"),
    )
