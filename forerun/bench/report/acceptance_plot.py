"""The plot of acceptance by position: how far a draft is right."""

from __future__ import annotations

from collections.abc import Mapping

from forerun.bench.findings import ENOUGH
from forerun.bench.report.series import Series
from forerun.bench.report.svg import WIDTH, Frame, Scale, apart, drawing, line, named, tag, text
from forerun.bench.summary import Summary


def acceptance(summary: Summary, series: Mapping[str, Series]) -> str:
    """A line a variant over all loads: of the candidates verified at a position, the share accepted."""
    rates = {name: summary.overall[name].rates for name in summary.speculating if summary.overall[name].rates}
    if not rates:
        return ""
    longest = max(len(found) for found in rates.values())
    frame = Frame(Scale(0.7, longest + 0.3, 60, WIDTH - 250), Scale(0, 1, 330, 34))
    frame.axis_x(list(range(1, longest + 1)), "position in the draft (1 is the first candidate)")
    frame.axis_y(
        [0, 0.2, 0.4, 0.6, 0.8, 1], "candidates accepted, of those verified at this position", lambda v: f"{v:.0%}"
    )
    for name, found in rates.items():
        look = series[name]
        places = [(frame.x(index), frame.y(rate)) for index, rate in enumerate(found, 1)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        frame.parts += [tag("polyline", points=points, class_=f"path {look.css}")]
        counts = [pair for pair in summary.overall[name].by_position if pair[1]]
        for (x, y), (accepted, verified) in zip(places, counts, strict=True):
            hint = f"{name}: {accepted} of {verified} accepted"
            frame.parts += [look.marker(x, y, 5, hint, hollow=verified < ENOUGH)]
    _labels(frame, summary, rates, series)
    return drawing(374, *frame.parts, label="Share of accepted candidates by position in the draft")


def _labels(frame: Frame, summary: Summary, rates: Mapping[str, list[float]], series: Mapping[str, Series]) -> None:
    edge = frame.x.end + 12
    places = apart([frame.y(found[-1]) for found in rates.values()], 17, 40, 330)
    frame.parts += [text(edge + 5, 22, "variant, tokens a round", "axis")]
    for (name, found), place in zip(rates.items(), places, strict=True):
        at = frame.x(len(found)) + 7
        frame.parts += [line(at, frame.y(found[-1]), edge, place, f"leader {series[name].css}")]
        length = f", {summary.overall[name].mean_length:.2f}"
        frame.parts += [named(edge + 5, place + 4, name, WIDTH - edge - 5, after=length)]
