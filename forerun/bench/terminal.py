"""The end of a run on a terminal: what to do, and the figures that matter most."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forerun.bench.advice import advise, command
from forerun.bench.findings import caveats, findings
from forerun.bench.load import Load
from forerun.bench.records import Run
from forerun.bench.stats import Spread
from forerun.bench.summary import Cell, Summary, summarise

_NONE = "-"


def show(console: Console, run: Run) -> None:
    """Prints the table and the advice."""
    summary = summarise(run)
    advice = advise(summary)
    picks = {(choice.load, choice.pick) for choice in advice.choices}
    console.print(_table(summary, picks))
    console.print()
    console.print(Text(advice.headline, "bold"))
    for choice in advice.choices:
        console.print(Text(f"{choice.load.label}: {choice.pick}: {choice.reason}"), soft_wrap=True)
    how = command(run, advice)
    if how:
        console.print(Text(f"to run it: {how}"), soft_wrap=True)
    for sentence in (*findings(run, summary), *caveats(run, summary)):
        console.print(Text(f"- {sentence}", "dim"), soft_wrap=True)


def _table(summary: Summary, picks: set[tuple[Load, str]]) -> Table:
    """Narrow enough for most terminals: the report has the rest."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    heads = ["", "tok/s", "x off", "95 %", "TTFT ms", "TPOT ms", "p95", "accepted", "a round"]
    for title in heads + (["failed"] if summary.errors else []):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for load in summary.loads:
        table.add_row(load.label, style="dim")
        for cell in summary.at(load):
            picked = (load, cell.variant) in picks
            row = [f"{'> ' if picked else '  '}{cell.variant}", *_figures(cell)]
            table.add_row(*row, *([str(cell.errors)] if summary.errors else []), style="bold" if picked else "")
    return table


def _figures(cell: Cell) -> list[str]:
    rounds, ratio = cell.rounds, cell.speedup
    return [
        f"{cell.throughput:.1f}",
        f"{ratio.value:.2f}" if ratio else _NONE,
        f"{ratio.low:.2f}-{ratio.high:.2f}" if ratio else _NONE,
        _ms(cell.ttft, "p50"),
        _ms(cell.tpot, "p50"),
        _ms(cell.tpot, "p95"),
        _NONE if rounds.acceptance is None else f"{rounds.acceptance:.0%}",
        f"{rounds.mean_length:.2f}",
    ]


def _ms(found: Spread | None, name: str) -> str:
    return _NONE if found is None else f"{getattr(found, name) * 1e3:.1f}"
