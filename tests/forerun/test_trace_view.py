"""The picture of a trace: every span once, below its parent, within the width, in the colour of its outcome."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from forerun import span_attributes, trace_view
from forerun.otlp_sink import ReceivedSpan

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MS = 1_000_000


def span(name: str, span_id: str, parent_id: str, start_ms: float, end_ms: float, **more: object) -> ReceivedSpan:
    service = f"forerun-{more.pop('service', 'gateway')}"
    return ReceivedSpan(service, name, TRACE, span_id, parent_id, int(start_ms * MS), int(end_ms * MS), **more)  # type: ignore[arg-type]


def round_span(index: int, start_ms: float, end_ms: float, drafted: int, accepted: int) -> ReceivedSpan:
    attributes = dict(
        span_attributes.round_attributes(
            index, start_position=1, drafted=drafted, accepted=accepted, committed=accepted + 1, epoch=3
        )
    )
    return span("round", f"r{index}", "request", start_ms, end_ms, attributes=attributes)


REQUEST = span("forerun.v1.GatewayService/Generate", "request", "client", 0, 100, kind="SERVER")


def picture(spans: list[ReceivedSpan], width: int = 100, colours: bool = False, **more: int) -> str:
    console = Console(
        width=width, file=io.StringIO(), force_terminal=colours, color_system="standard" if colours else None
    )
    console.print(trace_view.render(spans, TRACE, **more))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line_of(text: str, label: str) -> str:
    (line,) = [line for line in text.splitlines() if label in line]
    return line


def test_children_stand_below_their_parents_in_order_of_time() -> None:
    text = picture(
        [
            span("verify", "v", "r0", 30, 50, service="target"),
            span("draft", "d", "r0", 10, 20, service="draft"),
            round_span(1, 50, 90, 0, 0),
            round_span(0, 5, 50, 4, 2),
            REQUEST,
        ]
    )
    labels = ["Generate", "├─ round 0", "│  ├─ draft", "│  └─ verify", "└─ round 1"]
    assert [line_of(text, label) for label in labels] == text.splitlines()[-5:]
    assert "●●✕· 2/4 → 3" in line_of(text, "round 0")
    assert "2 rounds, 4 tokens, 2.00 a round; accepted 2 of 4 candidates" in text


def test_bars_share_one_axis() -> None:
    text = picture([REQUEST, round_span(0, 0, 50, 1, 1), round_span(1, 50, 100, 1, 0)])
    whole, first, second = (line_of(text, label) for label in ("Generate", "round 0", "round 1"))
    begin, end = whole.index("━"), whole.rindex("━")
    middle = (begin + end + 1) / 2
    assert first.index("━") == begin and abs(first.rindex("━") - middle) < 2
    assert abs(second.index("━") - middle) < 2 and second.rindex("━") == end


def test_a_moment_can_still_be_seen() -> None:
    text = picture([REQUEST, span("queue", "q", "request", 100, 100)])
    assert any(sign in line_of(text, "queue") for sign in "╸╺")


@pytest.mark.parametrize(("drafted", "accepted", "code"), [(3, 3, 32), (3, 1, 31), (0, 0, 90)])
def test_a_round_has_the_colour_of_its_outcome(drafted: int, accepted: int, code: int) -> None:
    assert f"\x1b[{code}mround 0" in picture([REQUEST, round_span(0, 0, 50, drafted, accepted)], colours=True)


def test_an_error_is_named() -> None:
    attributes = {span_attributes.ERROR_TYPE: "UNAVAILABLE"}
    text = picture([span("forerun.v1.GatewayService/Generate", "x", "", 0, 9, status="ERROR", attributes=attributes)])
    assert "UNAVAILABLE" in line_of(text, "Generate")


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    spans = [REQUEST, *(round_span(index, index, index + 1, 16, 9) for index in range(50))]
    text = picture(spans, width)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 50


def test_a_long_trace_loses_its_middle() -> None:
    spans = [REQUEST, *(round_span(index, index, index + 1, 0, 0) for index in range(30))]
    text = picture(spans, max_children=6)
    assert "24 more" in text
    assert [index for index in range(30) if f"round {index} " in text] == [0, 1, 2, 27, 28, 29]


def test_broken_trees_are_drawn_as_far_as_they_go() -> None:
    orphan = span("verify", "v", "nobody", 1, 2, service="target")
    circle = [span("a", "a", "b", 1, 2), span("b", "b", "a", 1, 2)]
    assert line_of(picture([orphan, *circle]), "verify").startswith("verify")


def test_a_trace_that_is_not_there_is_said() -> None:
    assert "no spans" in picture([])


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1500, "1.50 µs"),
        (12_340_000, "12.3 ms"),
        (212_000_000, "212 ms"),
        (61 * 10**9, "61.0 s"),
    ],
)
def test_durations_have_three_digits_and_a_unit(nanoseconds: int, text: str) -> None:
    assert trace_view.duration(nanoseconds) == text
