"""The report: made from JSON alone, complete, self-contained, and readable by a parser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from forerun.bench import records, report
from forerun.bench.report.svg import apart, named, nice_ticks
from forerun.bench.variants import OFF
from forerun.errors import InvalidArgument
from tests.forerun.bench.made_up import made_up_run

VARIANTS = (OFF, "ngram:4", "model:2", "model:4", "model:6", "ngram+model:4", "own/name:8", "a:1", "b:1")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "bench.json"
    records.save(made_up_run(VARIANTS, (1, 4)), path)
    return report.render(records.restore(path))


def test_it_is_made_from_the_json_alone_and_is_the_same(tmp_path: Path) -> None:
    run = made_up_run()
    records.save(run, tmp_path / "bench.json")
    first = report.render(records.restore(tmp_path / "bench.json"))
    records.save(records.restore(tmp_path / "bench.json"), tmp_path / "again.json")
    assert report.render(records.restore(tmp_path / "again.json")) == first


def test_it_names_every_variant_in_every_plot(page: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 5 + len(VARIANTS)  # a timeline each
    for drawing in drawings[:5]:
        missing = [name for name in VARIANTS if f">{name}" not in drawing]
        assert missing in ([], [OFF])  # off is not compared with itself, and drafts nothing


def test_it_needs_nothing_from_elsewhere(page: str) -> None:
    assert not re.search(r"https?://|//\w|@import|url\(|<script|<link|<img|<iframe|src=", page)


def test_every_tag_is_closed_and_every_drawing_is_xml(page: str) -> None:
    class Checker(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                self.open.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(drawing)


def test_names_and_texts_cannot_become_markup() -> None:
    run = made_up_run((OFF, "<i>x</i>:4"), (1,))
    run.command = "forerun bench '<script>'"
    made = report.render(run)
    assert "<i>" not in made and "<script>" not in made
    assert "&lt;b&gt;" in made  # a token's text in the timeline


def test_it_carries_the_figures_and_their_units(page: str) -> None:
    for part in ("TTFT, ms", "p95 time per output token, ms", "output tokens a second", "position in the draft", "PSS"):
        assert part in page


@pytest.mark.parametrize("variants", [(OFF,), ("model:4",), (OFF, "model:4")])
def test_little_data_makes_a_report_all_the_same(variants: tuple[str, ...]) -> None:
    run = made_up_run(variants, (1,), tokens=1)
    for done in run.passes:
        done.requests[0].error = "UNAVAILABLE: away"
    assert "Does speculation pay" in report.render(run)
    run.passes = []
    assert "Nothing was measured." in report.render(run)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "other"}', '{"format": "forerun-bench/1", "x": 1}'])
def test_a_file_that_is_no_run_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InvalidArgument, match=r"report-from: .*x\.json is (not a bench\.json|damaged)"):
        records.restore(tmp_path / "x.json")


def test_ticks_are_round_and_inside() -> None:
    assert nice_ticks(0, 1.06, 5) == [0, 0.5, 1]
    assert nice_ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert nice_ticks(3, 3) == [3]


def test_labels_keep_their_distance_and_their_order() -> None:
    places = apart([50, 10, 12, 11], 5, 0, 52)
    assert places == [50, 10, 20, 15]
    assert apart([50, 51], 5, 0, 52) == [47, 52]


def test_a_name_too_long_for_its_place_keeps_its_end_and_is_whole_as_a_hint() -> None:
    assert ">model:4</text>" in named(0, 0, "model:4", 60)
    shown = named(0, 0, "owner/a-long-name:4", 80)
    assert ">…ng-name:4<title>owner/a-long-name:4</title>" in shown


def test_acceptance_that_rests_on_few_candidates_is_drawn_hollow() -> None:
    assert 'class="hollow s1"' in report.render(made_up_run((OFF, "model:4"), (1,), passes=1, tokens=32))
    assert 'class="hollow s1"' not in report.render(made_up_run((OFF, "model:4"), (4,)))
