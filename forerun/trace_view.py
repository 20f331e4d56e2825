"""One trace as a picture in the terminal: a tree of spans on the left, the same spans on a common time axis beside it.

A round is green where all candidates were accepted, red where one was rejected, grey where there were none; other
spans have the colour of their service. It draws what it is given and fetches nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from forerun import span_attributes
from forerun.logs import COLOURS
from forerun.otlp_sink import ReceivedSpan

MAX_CHILDREN = 40  # of one span; the middle is left out beyond it
MAX_SIGNS = 8  # candidates drawn one by one

_ACCEPTED, _REJECTED, _PLAIN, _QUIET = "green", "red", "bright_black", "bright_black"


@dataclass(frozen=True, slots=True)
class _Row:
    """A span and its place in the tree, or a note in a span's place."""

    guide: str
    span: ReceivedSpan | None
    note: str = ""


def render(spans: Sequence[ReceivedSpan], trace_id: str, max_children: int = MAX_CHILDREN) -> RenderableType:
    """A picture of one trace out of `spans`; a line that says so if there is none."""
    spans = [span for span in spans if span.trace_id == trace_id]
    if not spans:
        return Text(f"no spans of trace {trace_id}", style=_QUIET)
    begin, end = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    table = Table(box=None, padding=(0, 1), pad_edge=False, expand=True, header_style=_QUIET)
    table.add_column("span", no_wrap=True)
    table.add_column(_Axis(end - begin), ratio=1, min_width=24)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", max_width=34)
    for row in _rows(spans, max_children):
        if row.span is None:
            table.add_row(Text(row.guide + row.note, style=_QUIET))
        else:
            bar = _Bar(row.span.start_ns - begin, row.span.end_ns - begin, end - begin, _colour(row.span))
            table.add_row(_label(row), bar, Text(duration(row.span.duration_ns)), _details(row.span))
    return Group(_title(spans, trace_id), table)


def duration(nanoseconds: int) -> str:
    """Three digits and a unit."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if nanoseconds >= size:
            value = nanoseconds / size
            return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"
    return f"{nanoseconds} ns"


def _rows(spans: Sequence[ReceivedSpan], max_children: int) -> Iterator[_Row]:
    """Depth first, in order of time. A span whose parent is not here is a root."""
    known = {span.span_id for span in spans}
    children: dict[str, list[ReceivedSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        children[span.parent_id if span.parent_id in known else ""].append(span)
    for root in children[""]:
        yield _Row("", root)
        yield from _below(root, children, "", max_children)


def _below(
    parent: ReceivedSpan, children: dict[str, list[ReceivedSpan]], indent: str, max_children: int
) -> Iterator[_Row]:
    shown: list[ReceivedSpan | int] = list(children.pop(parent.span_id, ()))
    left_out = len(shown) - max_children
    if left_out > 0:
        shown[max_children // 2 : max_children // 2 + left_out] = [left_out]
    for position, child in enumerate(shown, start=1):
        last = position == len(shown)
        if isinstance(child, int):
            yield _Row(f"{indent}⋮  ", None, f"{child} more")
            continue
        yield _Row(indent + ("└─ " if last else "├─ "), child)
        yield from _below(child, children, indent + ("   " if last else "│  "), max_children)


def _title(spans: Sequence[ReceivedSpan], trace_id: str) -> Text:
    rounds = [span for span in spans if span.name == span_attributes.ROUND]
    drafted = sum(span.attributes.get(span_attributes.DRAFTED, 0) for span in rounds)
    accepted = sum(span.attributes.get(span_attributes.ACCEPTED, 0) for span in rounds)
    committed = sum(span.attributes.get(span_attributes.COMMITTED, 0) for span in rounds)
    title = Text.assemble(("trace ", _QUIET), trace_id)
    if rounds:
        title.append(f"\n{len(rounds)} rounds, {committed} tokens, {committed / len(rounds):.2f} a round")
        title.append(f"; accepted {accepted} of {drafted} candidates")
    title.append("\n")
    for service in sorted({span.service for span in spans}):
        title.append("━ ", style=_service_colour(service)).append(f"{service}  ")
    return title


def _label(row: _Row) -> Text:
    assert row.span is not None
    name = row.span.name.rpartition("/")[2]
    if row.span.name == span_attributes.ROUND:
        name += f" {row.span.attributes.get(span_attributes.ROUND_INDEX, '')}"
    failed = row.span.status == "ERROR"
    return Text.assemble((row.guide, _QUIET), (name, "bold red" if failed else _colour(row.span)))


def _colour(span: ReceivedSpan) -> str:
    if span.name != span_attributes.ROUND:
        return _service_colour(span.service)
    outcome = span.attributes.get(span_attributes.OUTCOME, span_attributes.PLAIN)
    return {span_attributes.ALL_ACCEPTED: _ACCEPTED, span_attributes.PLAIN: _PLAIN}.get(outcome, _REJECTED)


def _service_colour(service: str) -> str:
    return COLOURS.get(service.removeprefix("forerun-"), "white")


def _details(span: ReceivedSpan) -> Text:
    """What there is to say of a span in a few words."""
    text = Text()
    if span.status == "ERROR":
        text.append(f"{_shown(span, span_attributes.ERROR_TYPE, '{}', 'failed')} ", style="bold red")
    if span.name == span_attributes.ROUND:
        text.append_text(_candidates(span))
    described = _DESCRIPTIONS.get(span.name, _REQUEST)
    return text.append(" · ".join(filter(None, (_shown(span, name, form) for name, form in described))), style=_QUIET)


_DESCRIPTIONS = {
    span_attributes.ROUND: ((span_attributes.EPOCH, "epoch {}"),),
    span_attributes.DRAFT: ((span_attributes.DRAFTED, "{} proposed"), (span_attributes.EPOCH, "epoch {}")),
    span_attributes.VERIFY: ((span_attributes.BATCH_SIZE, "batch {}"), (span_attributes.WAIT_MS, "waited {:.1f} ms")),
    span_attributes.PREFILL: ((span_attributes.TOKENS, "{} tokens"),),
}
_REQUEST = ((span_attributes.INPUT_TOKENS, "{} tokens in"), (span_attributes.OUTPUT_TOKENS, "{} out"))


def _shown(span: ReceivedSpan, name: str, form: str, otherwise: str = "") -> str:
    value = span.attributes.get(name)
    return form.format(value) if value else otherwise  # nothing is said of a zero


def _candidates(span: ReceivedSpan) -> Text:
    """A sign for each candidate: accepted, rejected, or in vain behind a rejected one; then what was committed."""
    drafted = span.attributes.get(span_attributes.DRAFTED, 0)
    accepted = span.attributes.get(span_attributes.ACCEPTED, 0)
    text = Text()
    if drafted <= MAX_SIGNS:
        text.append("●" * accepted, style=_ACCEPTED)
        text.append("✕" * min(1, drafted - accepted), style=_REJECTED)
        text.append("·" * (drafted - accepted - 1) + " " * bool(drafted), style=_QUIET)
    if drafted:
        text.append(f"{accepted}/{drafted} ", style=_colour(span))
    return text.append(f"→ {span.attributes.get(span_attributes.COMMITTED, 0)}  ")


class _Axis:
    """Begin, middle and end of the time axis, above the bars."""

    def __init__(self, whole: int) -> None:
        self._middle, self._end = duration(whole // 2), duration(whole)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left, right = options.max_width // 2, options.max_width - options.max_width // 2
        # The middle's label begins at the middle, as a span that begins there does.
        yield Segment(f"{'0':<{left}}{self._middle + self._end.rjust(right - len(self._middle))}")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(8, options.max_width)


class _Bar:
    """A span on the time axis, to half a character, at least half a character long."""

    def __init__(self, begin: int, end: int, whole: int, colour: str) -> None:
        self._begin, self._end, self._whole, self._colour = begin, end, max(1, whole), colour

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        halves = 2 * options.max_width
        begin = min(halves - 1, self._begin * halves // self._whole)
        end = max(begin + 1, -(-self._end * halves // self._whole))
        cells = [(begin <= left < end, begin <= left + 1 < end) for left in range(0, halves, 2)]
        yield Segment("".join(_CELLS[cell] for cell in cells), console.get_style(self._colour))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(8, options.max_width)


_CELLS = {(False, False): " ", (True, True): "━", (True, False): "╸", (False, True): "╺"}
