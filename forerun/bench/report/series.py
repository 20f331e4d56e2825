"""How a variant looks in every plot: a colour, a shape and a dash, so that no two differ by colour alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.bench.report.svg import tag, title
from forerun.bench.variants import OFF

_SHAPES = ("circle", "square", "diamond", "triangle", "plus", "hexagon")
COLOURS = len(_SHAPES)


@dataclass(frozen=True, slots=True)
class Series:
    """`css` is a class; class s0 is plain decoding."""

    name: str
    css: str
    shape: str

    def marker(self, x: float, y: float, size: float = 5.0, hint: str = "", hollow: bool = False) -> str:
        """The series' mark."""
        css = f"{'hollow' if hollow else 'mark'} {self.css}"
        if self.shape == "circle":
            return tag("circle", title(hint), cx=x, cy=y, r=size, class_=css)
        points = " ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in _OUTLINES[self.shape])
        return tag("polygon", title(hint), points=points, class_=css)


def series_of(variants: Sequence[str]) -> dict[str, Series]:
    """One for each variant, the same in all plots of a report."""
    found = {OFF: Series(OFF, "s0", "circle")}
    for index, name in enumerate(name for name in variants if name != OFF):
        # With more variants than colours, the shapes shift at the second turn.
        shape = _SHAPES[(index + index // COLOURS) % COLOURS]
        found[name] = Series(name, f"s{index % COLOURS + 1}", shape)
    return found


_OUTLINES = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    "triangle": ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
    "plus": (
        (-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4),
        (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4),
    ),
    "hexagon": ((-0.6, -1.05), (0.6, -1.05), (1.2, 0), (0.6, 1.05), (-0.6, 1.05), (-1.2, 0)),
}  # fmt: skip
