"""A checked pair as a table with words for a terminal, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draft_service.check_pair.advice import Advice
from draft_service.check_pair.measurement import Measurement
from draft_service.check_pair.pair import VocabulariesDiffer


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured, and how."""

    target: str
    draft: str
    device: str
    dtype: str
    threads: int
    vocabulary_size: int
    draft_vocabulary: int  # tokens that the draft may propose
    prompts: int
    tokens: int
    temperature: float


def show(console: Console, subject: Subject, measured: Measurement, advice: Advice) -> None:
    """The pair in a line, acceptance by position, a row a draft length, and the advice."""
    drawn = "greedy" if subject.temperature == 0 else f"temperature {subject.temperature:g}"
    few = subject.draft_vocabulary < subject.vocabulary_size
    restricted = f", of which the draft proposes {subject.draft_vocabulary:,}" if few else ""
    console.print(
        f"{subject.target} with {subject.draft}: {subject.tokens:,} tokens after {subject.prompts} prompts, {drawn}, "
        f"{subject.dtype} on {subject.device}, {subject.threads} threads; one vocabulary of "
        f"{subject.vocabulary_size:,} tokens{restricted}",
        style="dim",
        soft_wrap=True,
    )
    rates = "  ".join(f"{rate:.2f}" for rate in measured.asked.acceptance)
    console.print(f"accepted by position, draft length {measured.draft_length}: {rates}", soft_wrap=True)
    console.print(_table(measured, advice))
    console.print(
        f"x plain: expected, with {measured.wire_ms:g} ms a round for the wire and drafts that never end early",
        style="dim",
        soft_wrap=True,
    )
    for words in advice.words:
        console.print(Text(words), soft_wrap=True)


def _table(measured: Measurement, advice: Advice) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("draft length", "verify ms", *(f"{name} {what}" for name in measured.tallies for what in _COLUMNS)):
        table.add_column(title, justify="right")
    for length in next(iter(measured.tallies.values())):
        row = [str(length), f"{measured.verify(length + 1):.1f}"]
        for by_length in measured.tallies.values():
            tally = by_length[length]
            row += [f"{tally.mean_accepted_length:.2f}", f"{measured.ratio(tally):.2f}"]
        table.add_row(*row, style="bold" if length == advice.draft_length else "")
    return table


_COLUMNS = ("a round", "x plain")


def as_json(subject: Subject, measured: Measurement, advice: Advice) -> dict[str, Any]:
    """Everything `show` prints, and the acceptance of every drafter at every length."""
    return {
        "fits": True,
        **asdict(subject),
        "draft_length": measured.draft_length,
        "acceptance_by_position": _rounded(measured.asked.acceptance),
        "step_ms": {
            "target": {str(size): round(ms, 3) for size, ms in measured.verify_ms.items()},
            "draft": None if measured.draft_ms is None else round(measured.draft_ms, 3),
            "wire": measured.wire_ms,
            "unsteadiness": round(measured.unsteadiness, 3),
        },
        "drafters": {name: _lengths(measured, name) for name in measured.tallies},
        "advice": asdict(advice),
    }


def _lengths(measured: Measurement, drafter: str) -> Mapping[str, Any]:
    return {
        str(length): {
            "mean_accepted_length": round(tally.mean_accepted_length, 4),
            "acceptance_by_position": _rounded(tally.acceptance),
            "rounds": tally.rounds,
            "rounds_with_candidates": tally.modelled + tally.looked_up,
            "ratio": round(measured.ratio(tally), 4),
        }
        for length, tally in measured.tallies[drafter].items()
    }


def refusal(target: str, draft: str, error: VocabulariesDiffer) -> dict[str, Any]:
    """The JSON of a pair that cannot speculate."""
    return {"fits": False, "target": target, "draft": draft, "differences": list(error.differences)}


def _rounded(rates: list[float]) -> list[float]:
    return [round(rate, 4) for rate in rates]
