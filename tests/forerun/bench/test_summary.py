"""The figures of a cell against sums made by hand."""

from __future__ import annotations

import pytest

from forerun.bench.load import Load
from forerun.bench.records import Deployment, Pass, Request, Run, Speculation
from forerun.bench.report.tables import unused
from forerun.bench.summary import summarise

ONE = Load(concurrency=1)


def request(prompt: int, latency_s: float, chunks: list[tuple[float, int]], speculation: Speculation) -> Request:
    tokens = sum(count for _, count in chunks)
    return Request(
        prompt, 0, "chat", 0.0, latency_s, token_ids=list(range(tokens)), chunks=chunks, speculation=speculation
    )


def two_requests() -> Run:
    run = Run("", "", {}, {}, {}, ["off", "model:2"], True, [Deployment("model")])
    plain = Speculation(rounds=4, committed=4, round_ms=40, step_ms=36)
    for prompt in (0, 1):
        chunks = [(0.1, 1), (0.2, 1), (0.3, 1), (0.4, 1)]
        run.passes.append(Pass("model", "off", ONE, prompt, 0.5, [request(prompt, 0.4, chunks, plain)]))
    drafted = Speculation(2, 4, 2, [2, 2], [1, 1], 4, round_ms=30, step_ms=20, wait_ms=8, draft_ms=6)
    for prompt in (0, 1):
        counters = {"draft.drafted_tokens": 5}
        made = request(prompt, 0.2, [(0.1, 1), (0.16, 3)], drafted)
        run.passes.append(Pass("model", "model:2", ONE, prompt, 0.25, [made], counters=counters))
    return run


def test_a_cell_adds_its_passes_up() -> None:
    summary = summarise(two_requests())
    cell = summary.cells["model:2", ONE]
    assert (cell.requests, cell.tokens, cell.throughput) == (2, 8, 16.0)
    assert cell.throughput_range == (16.0, 16.0)
    assert cell.in_flight == pytest.approx(0.8)
    assert cell.tpot is not None and cell.tpot.p50 == pytest.approx(0.02)
    assert cell.itl is not None and cell.itl.count == 6 and cell.itl.p95 == pytest.approx(0.02)
    assert cell.gap is not None and cell.gap.count == 2 and cell.gap.p50 == pytest.approx(0.06)
    rounds = cell.rounds
    assert (rounds.acceptance, rounds.rates, rounds.mean_length) == (0.5, [0.5, 0.5], 2.0)
    assert (rounds.round_ms, rounds.step_ms, rounds.wait_ms, rounds.other_ms) == (15, 10, 4, 1)
    assert unused(cell) == pytest.approx(0.2)
    assert (cell.identical, cell.compared) == (2, 2)


def test_speed_is_compared_prompt_by_prompt_with_off_beside_it() -> None:
    summary = summarise(two_requests())
    speedup = summary.cells["model:2", ONE].speedup
    assert speedup is not None and speedup.value == pytest.approx(2.0)
    assert summary.cells["off", ONE].speedup is None


def test_off_beside_another_drafter_does_not_count() -> None:
    run = two_requests()
    others = [Pass("ngram", "off", ONE, one.index, 5.0, one.requests) for one in run.passes if one.variant == "off"]
    for one in others:
        one.requests = [request(one.requests[0].prompt, 4.0, one.requests[0].chunks, one.requests[0].speculation)]
    run.passes += others
    speedup = summarise(run).cells["model:2", ONE].speedup
    assert speedup is not None and speedup.value == pytest.approx(2.0)
