"""Says how a run goes: a bar and a line a pass on a terminal, lines alone elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from forerun.bench.load import Load
from forerun.bench.records import Pass, Request
from forerun.bench.runner import Plan
from forerun.bench.stats import spread
from forerun.bench.summary import add_rounds
from forerun.bench.variants import Variant, by_drafter


class Screen:
    """An observer of `runner`. A context manager, during which the bar lives."""

    def __init__(self, console: Console, expected: int) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("[red]{task.fields[errors]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=expected, errors="")
        self._errors = 0
        self._measuring = ""

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def starting(self, drafter: str) -> None:
        """The services of a drafter are being started, or looked at."""
        self._bar.update(self._task, description=f"services with draft {drafter or 'none'}")
        self._say(f"services with draft {drafter or 'none'}", "bold")

    def measuring(self, drafter: str, variant: Variant, load: Load, turn: str, requests: int) -> None:
        """A pass begins."""
        self._measuring = f"{load.label}, pass {turn}: {variant.name}"
        self._bar.update(self._task, description=self._measuring)

    def answered(self, request: Request) -> None:
        """A request has ended, one way or the other."""
        self._errors += bool(request.error)
        self._bar.update(self._task, advance=1, errors=f"{self._errors} failed" if self._errors else "")

    def measured(self, done: Pass) -> None:
        """A pass has ended."""
        good = [request for request in done.requests if not request.error]
        pace = spread([request.tpot_s for request in good if request.tpot_s is not None])
        rate = add_rounds(good).acceptance
        parts = [f"{sum(request.tokens for request in good) / done.wall_s:7.1f} tok/s" if done.wall_s else ""]
        parts += [f"TPOT p50 {pace.p50 * 1e3:.1f} ms"] if pace is not None else []
        parts += [f"{rate:.0%} accepted"] if rate is not None else []
        failed = len(done.requests) - len(good)
        parts += [f"{failed} of {len(done.requests)} FAILED"] if failed else []
        self._say(f"  {self._measuring:<44} {'  '.join(parts)}", "red" if failed else "")

    def failed(self, drafter: str, reason: str) -> None:
        """A drafter's services did not start, or do not answer."""
        self._say(f"  draft {drafter} is left out: {reason}", "red")

    def _say(self, line: str, style: str) -> None:
        self._console.print(line, style=style, soft_wrap=True, markup=False)


def expected_requests(plan: Plan, together: bool) -> int:
    """How many requests a plan sends, warm-up apart. `together`: all variants on one set of services."""
    groups = [plan.variants] if together else list(by_drafter(plan.variants).values())
    turns = len(plan.prompts[0].turns) if plan.all_turns else 1  # of the first prompt: an estimate
    return sum(len(group) * load.requests(plan.requests) * turns for group in groups for load in plan.loads)
