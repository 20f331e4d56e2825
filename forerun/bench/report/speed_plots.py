"""The plots of speed: against plain decoding, throughput against pace, and where the time of a token goes."""

from __future__ import annotations

from collections.abc import Mapping

from forerun.bench.report.series import Series
from forerun.bench.report.svg import (
    WIDTH,
    Frame,
    Scale,
    apart,
    drawing,
    line,
    named,
    nice_ticks,
    rectangle,
    tag,
    text,
    title,
)
from forerun.bench.stats import Estimate
from forerun.bench.summary import Cell, Summary

_ROW = 22.0
_NAMES = 190.0  # room for the variants' names


def speedups(summary: Summary, series: Mapping[str, Series]) -> str:
    """How many times as fast as off, a row a variant, grouped by load. Empty if nothing was compared."""
    groups = [(load, [(c, c.speedup) for c in summary.at(load) if c.speedup is not None]) for load in summary.loads]
    groups = [(load, rated) for load, rated in groups if rated]
    if not groups:
        return ""
    estimates = [speedup for _, rated in groups for _, speedup in rated if speedup is not None]
    low, high = min(0.8, *(e.low for e in estimates)), max(1.2, *(e.high for e in estimates))
    rows = sum(len(rated) for _, rated in groups)
    top, bottom = 30.0, 30.0 + (rows + len(groups)) * _ROW + 7
    frame = Frame(Scale(low - 0.03, high + 0.03, _NAMES, WIDTH - 70), Scale(0, 1, bottom, top))
    one = frame.x(1)
    frame.parts += [rectangle(frame.x.start, top, one - frame.x.start, bottom - top, "worse")]
    frame.parts += [rectangle(one, top, frame.x.end - one, bottom - top, "better")]
    ticks = nice_ticks(frame.x.low, frame.x.high, 8)
    frame.axis_x(ticks, "times as fast as plain decoding (off), per output token", lambda value: f"{value:g}×")  # noqa: RUF001
    frame.parts += [line(one, top - 6, one, bottom, "reference")]
    frame.parts += [
        text(one - 8, top - 10, "◂ slower than off", "note", "end"),
        text(one + 8, top - 10, "faster ▸", "note"),
    ]
    y = top
    for load, rated in groups:
        if y > top:
            frame.parts += [line(0, y + 4, frame.x.start, y + 4, "grid")]
        frame.parts += [text(0, y + _ROW / 2 + 8, load.label, "strong")]
        y += _ROW
        for cell, speedup in rated:
            assert speedup is not None
            frame.parts += [_speedup_row(frame, series[cell.variant], speedup, y + _ROW / 2)]
            y += _ROW
    return drawing(bottom + 40, *frame.parts, label="Speed of each variant against plain decoding, by load")


def _speedup_row(frame: Frame, look: Series, speedup: Estimate, y: float) -> str:
    hint = f"{look.name}: {speedup.value:.2f} times, 95 % range {speedup.low:.2f} to {speedup.high:.2f}"
    left, right = frame.x(speedup.low), frame.x(speedup.high)
    return "".join(
        (
            named(_NAMES - 10, y + 4, look.name, _NAMES - 10, "end"),
            tag("line", x1=left, y1=y, x2=right, y2=y, class_=f"range {look.css}"),
            look.marker(frame.x(speedup.value), y, 5.5, hint),
            text(right + 10, y + 4, f"{speedup.value:.2f}×", "value"),  # noqa: RUF001
        )
    )


def throughput(summary: Summary, series: Mapping[str, Series]) -> str:
    """Output tokens a second against p95 time per output token: a line a variant, a numbered point a load."""
    points = {
        name: [(cell.tpot.p95 * 1e3, cell.throughput, cell) for cell in summary.of(name) if cell.tpot is not None]
        for name in summary.variants
    }
    points = {name: found for name, found in points.items() if found}
    if not points:
        return ""
    every = [point for found in points.values() for point in found]
    frame = Frame(
        Scale(0, max(x for x, _, _ in every) * 1.06, 60, WIDTH - 190),
        Scale(0, max(y for _, y, _ in every) * 1.1, 370, 34),
    )
    frame.axis_x(nice_ticks(0, frame.x.high, 8), "p95 time per output token, ms (left is smoother for the reader)")
    frame.axis_y(nice_ticks(0, frame.y.high), "output tokens a second, all requests together (up is more work done)")
    for name, found in points.items():
        frame.parts += [_path(frame, found, series[name])]
    for name, found in points.items():
        frame.parts += [_stop(frame, x, y, cell, series[name]) for x, y, cell in found]
    ends = {name: max(found, key=lambda point: point[1]) for name, found in points.items()}
    places = apart([frame.y(y) for _, y, _ in ends.values()], 17, 40, 366)
    for (name, (x, y, _)), place in zip(ends.items(), places, strict=True):
        edge = frame.x.end + 14
        frame.parts += [line(frame.x(x) + 11, frame.y(y), edge, place, f"leader {series[name].css}")]
        frame.parts += [named(edge + 5, place + 4, name, WIDTH - edge - 5)]
    return drawing(416, *frame.parts, label="Throughput against p95 time per output token, by variant and load")


def _path(frame: Frame, found: list[tuple[float, float, Cell]], look: Series) -> str:
    lines = []
    for kind in (False, True):  # closed and open loops are not one line
        places = [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y, cell in found if bool(cell.load.rate) == kind]
        lines += [tag("polyline", points=" ".join(places), class_=f"path {look.css}")] if len(places) > 1 else []
    return "".join(lines)


def _stop(frame: Frame, x: float, y: float, cell: Cell, look: Series) -> str:
    hint = f"{cell.variant}, {cell.load.label}: {y:.1f} tok/s, p95 {x:.1f} ms a token"
    shown = text(frame.x(x), frame.y(y) + 4, cell.load.short, "inside", "middle", pointer_events="none")
    mark = tag("circle", title(hint), cx=frame.x(x), cy=frame.y(y), r=9.5, class_=f"mark {look.css}")
    return mark + shown


def time_of_a_token(summary: Summary) -> str:
    """Milliseconds a token, split into wait, step and the rest, a bar a variant, grouped by load."""
    cells = [cell for load in summary.loads for cell in summary.at(load) if cell.rounds.committed]
    if not cells:
        return ""
    longest = max(cell.rounds.round_ms / cell.rounds.mean_length for cell in cells)
    height = 40 + (len(cells) + len({cell.load for cell in cells})) * _ROW
    frame = Frame(Scale(0, longest * 1.02, _NAMES, WIDTH - 190), Scale(0, 1, height, 30))
    frame.axis_x(
        nice_ticks(0, frame.x.high, 8), "time per output token, ms (a round's time over the tokens it commits)"
    )
    key = (("wait", "waiting before the step"), ("step", "target's step"), ("other", "hops and turns in between"))
    for index, (css, meaning) in enumerate(key):
        at = _NAMES + index * 195.0
        frame.parts += [rectangle(at, 8, 12, 12, css), text(at + 18, 18, meaning, "note")]
    y = 30.0
    for load in summary.loads:
        bars = [cell for cell in cells if cell.load == load]
        frame.parts += [text(0, y + _ROW / 2 + 8, load.label, "strong")] if bars else []
        y += _ROW if bars else 0
        for cell in bars:
            frame.parts += [_stack(frame, cell, y)]
            y += _ROW
    return drawing(height + 40, *frame.parts, label="Where the time of a token goes, by variant and load")


def _stack(frame: Frame, cell: Cell, y: float) -> str:
    rounds, x = cell.rounds, frame.x.start
    bars = [named(_NAMES - 10, y + _ROW / 2 + 4, cell.variant, _NAMES - 10, "end")]
    for css, spent in (("wait", rounds.wait_ms), ("step", rounds.step_ms), ("other", rounds.other_ms)):
        width = (frame.x(spent / rounds.mean_length) - frame.x.start) if spent else 0.0
        bars += [rectangle(x, y + 3, width, _ROW - 6, css, f"{cell.variant}: {css} {spent:.1f} ms a round")]
        x += width
    shown = f"{rounds.round_ms / rounds.mean_length:.1f} ms = {rounds.round_ms:.1f} / {rounds.mean_length:.2f}"
    return "".join((*bars, text(x + 8, y + _ROW / 2 + 4, shown, "value")))
