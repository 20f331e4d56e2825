"""The same requests with and without speculation: speeds side by side, and whether the texts are the same.

One run of each way is a demonstration, not a benchmark; `forerun bench` measures.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from forerun.cli.failure import FAILED
from forerun.client import Answer


@dataclass(frozen=True, slots=True)
class Comparison:
    """One request, answered both ways. `kind` is what a reader calls it."""

    kind: str
    plain: Answer
    speculative: Answer

    @property
    def difference(self) -> str:
        """Where the answers part. Empty if they do not."""
        plain, speculative = self.plain, self.speculative
        if (plain.token_ids, plain.text) == (speculative.token_ids, speculative.text):
            return ""
        pairs = itertools.zip_longest(plain.token_ids, speculative.token_ids)
        position = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
        where = (
            "the token ids are equal, the texts are not"
            if position is None
            else f"they part at output token {position}"
        )
        return f"{self.kind}: {where}\nplain:       {plain.text!r}\nspeculative: {speculative.text!r}"


def verdict(console: Console, comparisons: Sequence[Comparison]) -> int:
    """Prints the speeds and what they say, and whether the texts are identical; the exit code."""
    console.print(speeds(comparisons))
    plain, speculative = (
        speed([one.plain for one in comparisons]),
        speed([one.speculative for one in comparisons]),
    )
    ratio = speculative / plain if plain else 0.0
    if ratio >= 1:
        console.print(f"speculation is {ratio:.2f} times as fast here")
    else:
        console.print(
            f"speculation is slower here, at {ratio:.2f} times the speed: on this machine drafting and verifying cost "
            "more time than the tokens they save"
        )
    differences = [one.difference for one in comparisons if one.difference]
    for found in differences:
        console.print(f"the texts differ: {found}", style="bold red", markup=False)
    if differences:
        return FAILED
    console.print("texts: [bold green]identical[/]")
    return 0


def speeds(comparisons: Sequence[Comparison]) -> Table:
    """A row for each request and one for all."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
    for title in ("", "plain tok/s", "speculative tok/s", "times as fast", "tokens a round"):
        table.add_column(title, justify="right" if title else "left")
    rows = [(one.kind, [one.plain], [one.speculative]) for one in comparisons]
    if len(rows) > 1:
        every = [one.plain for one in comparisons], [one.speculative for one in comparisons]
        rows.append(("[bold]all", *every))
    for kind, plain, speculative in rows:
        before, after = speed(plain), speed(speculative)
        rounds = sum(answer.finished.speculation.rounds for answer in speculative)
        tokens = sum(len(answer.token_ids) for answer in speculative)
        shown = (
            f"{before:.1f}",
            f"{after:.1f}",
            f"{after / before:.2f}" if before else "",
            f"{tokens / max(rounds, 1):.2f}",
        )
        table.add_row(kind, *shown)
    return table


def speed(answers: Sequence[Answer]) -> float:
    """Tokens a second after the first token, over all answers. 0 if none has two tokens."""
    timed = [(len(answer.token_ids) - 1, answer.tokens_per_second) for answer in answers if answer.tokens_per_second]
    seconds = sum(count / rate for count, rate in timed)
    return sum(count for count, _ in timed) / seconds if seconds else 0.0
