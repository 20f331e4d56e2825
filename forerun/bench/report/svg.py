"""Drawing SVG as text: elements, scales, axes, and labels that do not cover each other.

Colours are CSS classes, so that one drawing serves light, dark and paper. Lengths are pixels of the view box.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WIDTH = 860.0
_LETTER = 7.3  # the width of one, on average, in the plots' size


def tag(name: str, *content: str, **attributes: object) -> str:
    """An element; `class_` becomes class and `text_anchor` text-anchor. Content is markup and must be escaped."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_number(value) if isinstance(value, float) else value}"'
        for key, value in attributes.items()
    )
    return f"<{name}{shown}>{''.join(content)}</{name}>" if content else f"<{name}{shown}/>"


def text(x: float, y: float, content: str, class_: str = "", anchor: str = "start", **more: object) -> str:
    """Words; `anchor` is start, middle or end."""
    return tag("text", escape(content), x=x, y=y, class_=class_, text_anchor=anchor, **more)


def named(x: float, y: float, full: str, room: float, anchor: str = "start", after: str = "") -> str:
    """A variant's name. One too long for `room` loses its beginning, which tells least, and shows it as a hint."""
    letters = int(room / _LETTER) - len(after)
    shown = full if len(full) <= letters else f"…{full[1 - letters :]}"
    hint = title(full) if shown != full else ""
    return tag("text", escape(shown + after), hint, x=x, y=y, class_="name", text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rectangle(x: float, y: float, width: float, height: float, class_: str, hint: str = "") -> str:
    """A bar; `hint` shows under the pointer."""
    return tag("rect", title(hint), x=x, y=y, width=max(width, 0.0), height=height, class_=class_)


def title(hint: str) -> str:
    """What shows under the pointer; nothing for an empty hint."""
    return tag("title", escape(hint)) if hint else ""


def escape(content: str) -> str:
    """Text as markup; what a document may not hold becomes a visible stand-in."""
    return html.escape("".join(char if char >= " " else "·" for char in content))


def drawing(height: float, *parts: str, label: str) -> str:
    """The whole picture; `label` is read out to those who cannot see it."""
    box = f"0 0 {_number(WIDTH)} {_number(height)}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label=escape(label), class_="plot")


def nice_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers between `low` and `high`, about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, in the same order of size, `gap` apart and within the bounds if they fit."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [0.0] * len(wanted)
    floor = low
    for index in order:
        places[index] = floor = max(wanted[index], floor)
        floor += gap
    ceiling = high
    for index in reversed(order):
        places[index] = ceiling = min(places[index], ceiling)
        ceiling -= gap
    return places


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


@dataclass(slots=True)
class Frame:
    """A plot area with its axes. `parts` is the picture so far."""

    x: Scale
    y: Scale
    parts: list[str] = field(default_factory=list)

    def axis_x(
        self, ticks: Sequence[float], label: str, show: Callable[[float], str] = lambda value: f"{value:g}"
    ) -> None:
        """Grid lines with numbers below, and what they mean."""
        for tick in ticks:
            at = self.x(tick)
            self.parts += [line(at, self.y.end, at, self.y.start, "grid")]
            self.parts += [text(at, self.y.start + 16, show(tick), "tick", "middle")]
        self.parts += [text((self.x.start + self.x.end) / 2, self.y.start + 34, label, "axis", "middle")]

    def axis_y(
        self, ticks: Sequence[float], label: str, show: Callable[[float], str] = lambda value: f"{value:g}"
    ) -> None:
        """Grid lines with numbers on the left, and above them what they mean."""
        for tick in ticks:
            at = self.y(tick)
            self.parts += [line(self.x.start, at, self.x.end, at, "grid")]
            self.parts += [text(self.x.start - 8, at + 4, show(tick), "tick", "end")]
        self.parts += [text(self.x.start - 44, self.y.end - 12, label, "axis")]


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
