"""Stop strings are found wherever the text is cut, and no more text is held back than may become one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import InvalidArgument
from gateway.stop_strings import StopStrings

SMALL = st.text("ab", min_size=1, max_size=4)


def first_stop(text: str, stops: list[str], armed_from: int = 0) -> tuple[int, str] | None:
    """By brute force: (where it ends, which) of the stop string that is complete first, the longest of equals."""
    for end in range(armed_from + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end, max(complete, key=len)
    return None


@settings(max_examples=500)
@given(st.lists(st.text("ab", max_size=5), max_size=8), st.lists(SMALL, max_size=4), st.booleans())
def test_equals_search_in_the_whole_text(parts: list[str], stops: list[str], include_stop: bool) -> None:
    matcher = StopStrings(stops, include_stop)
    shown, matched = "", None
    for part in parts:
        safe, matched = matcher.push(part)
        shown += safe
        if matched:
            break
    expected = first_stop("".join(parts), stops)
    if expected is None:
        assert matched is None and shown + matcher.flush() == "".join(parts)
    else:
        end, stop = expected
        assert matched == stop
        assert shown == "".join(parts)[: end if include_stop else end - len(stop)]
    assert matcher.flush() == ""


@settings(max_examples=300)
@given(st.lists(st.text("ab", max_size=5), max_size=8), st.lists(SMALL, min_size=1, max_size=3))
def test_holds_exactly_the_longest_possible_beginning(parts: list[str], stops: list[str]) -> None:
    matcher = StopStrings(stops)
    text = shown = ""
    for part in parts:
        safe, matched = matcher.push(part)
        if matched:
            return
        text, shown = text + part, shown + safe
        beginnings = {stop[:n] for stop in stops for n in range(1, len(stop))}
        assert len(text) - len(shown) == max((len(b) for b in beginnings if text.endswith(b)), default=0)
        assert text.startswith(shown)


@settings(max_examples=300)
@given(st.text("ab", max_size=8), st.text("ab", max_size=12), st.lists(SMALL, max_size=3))
def test_unarmed_text_ends_no_stop_string_but_may_begin_one(before: str, after: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown, matched = matcher.push(before, armed=False)
    assert matched is None
    safe, matched = matcher.push(after)
    expected = first_stop(before + after, stops, armed_from=len(before))
    assert matched == (expected[1] if expected else None)
    if expected:
        assert shown + safe == (before + after)[: expected[0] - len(expected[1])]


def test_the_longest_of_those_that_end_together_wins() -> None:
    assert StopStrings(["D", "END"]).push("the END.") == ("the ", "END")


def test_the_one_complete_first_wins_over_the_one_that_began_first() -> None:
    assert StopStrings(["abcdef", "cd"]).push("xabcdef") == ("xab", "cd")


def test_include_stop_keeps_the_string_and_nothing_after_it() -> None:
    assert StopStrings(["END"], include_stop=True).push("the END.") == ("the END", "END")


@pytest.mark.parametrize("stops", [[""], ["x" * 1025], ["x"] * 17])
def test_refuses_what_it_cannot_bound(stops: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="stop"):
        StopStrings(stops)


def test_text_after_a_stop_is_our_bug() -> None:
    matcher = StopStrings(["x"])
    matcher.push("x")
    with pytest.raises(AssertionError):
        matcher.push("y")
