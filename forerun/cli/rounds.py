"""Shows rounds to people: each token coloured by where it came from, then a line a round.

Accepted tokens are candidates that equal the target's own draw. A correction is the target's token after a rejected
candidate, a bonus its token after a fully accepted draft, a plain token comes from a round without candidates.
Colours are rich styles: the console drops them where there is no terminal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from forerun.client import Chunk, Round, SpeculationUsage

STYLES = {"accepted": "green", "correction": "bold yellow", "bonus": "bold bright_blue", "plain": ""}
_REJECTED = "red strike"
_VISIBLE = str.maketrans({"\n": "↵", "\r": "␍", "\t": "→"})
_BROKEN = "�"  # stands in a token's text where it ends or begins inside a character


def origins(round: Round) -> list[str]:
    """Where each committed token of a round came from: a key of `STYLES`."""
    drafted = len(round.draft_token_ids)
    last = "plain" if drafted == 0 else "bonus" if round.accepted_count == drafted else "correction"
    committed = len(round.committed_token_ids)
    return ["accepted" if index < round.accepted_count else last for index in range(committed)]


class Painter:
    """Colours the text of chunks by the rounds that they carry."""

    def __init__(self) -> None:
        self._tokens: deque[tuple[str, str]] = deque()  # text and origin of tokens whose text is still to come

    def paint(self, chunk: Chunk) -> Text:
        """The chunk's text, exactly, in colours."""
        for round in chunk.rounds:
            self._tokens.extend(zip(round.committed_texts, origins(round), strict=True))
        line, rest, style = Text(), chunk.text, ""
        for _ in range(min(len(chunk.token_ids), len(self._tokens))):
            text, origin = self._tokens.popleft()
            # A token that holds part of a character has no text of its own: what stands there takes its neighbour's.
            start = rest.find(text) if text and _BROKEN not in text else -1
            if start >= 0:
                line.append(rest[:start], style or STYLES[origin])
                line.append(text, STYLES[origin])
                rest = rest[start + len(text) :]
            style = STYLES[origin]
        return line.append(rest, style)


def legend() -> Text:
    """One line that says which colour means what."""
    line = Text()
    for origin, style in STYLES.items():
        line.append("■ ", style or "default").append(f"{origin}  ")
    return line.append("rejected", _REJECTED).append(" candidates never reach the answer")


def table(rounds: Iterable[Round]) -> Table:
    """A line a round: what was drafted, what became of it, and where the time went."""
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("round", "drafted", "accepted", "committed", "epoch", "round ms", "step ms", "wait ms", "draft ms"):
        number = title not in ("drafted", "committed")
        grid.add_column(title, justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    for round in rounds:
        drafted = len(round.draft_token_ids)
        grid.add_row(
            str(round.index),
            _tokens(round.draft_texts, _draft_styles(round)),
            f"{round.accepted_count}/{drafted}" if drafted else "-",
            _tokens(round.committed_texts, [STYLES[origin] for origin in origins(round)]),
            str(round.epoch) if drafted else "-",
            *(f"{value / 1e6:.1f}" for value in (round.round_ns, round.step_ns, round.wait_ns, round.draft_ns)),
        )
    return grid


def summary(usage: SpeculationUsage) -> str:
    """What speculation did, in one line."""
    if not usage.drafted_tokens:
        return f"{usage.rounds} rounds, no candidates"
    reached = zip(usage.accepted_per_position, usage.drafted_per_position, strict=False)
    by_position = " ".join(f"{accepted / drafted:.2f}" for accepted, drafted in reached if drafted)
    return (
        f"{usage.rounds} rounds, {usage.accepted_tokens} of {usage.drafted_tokens} candidates accepted "
        f"({usage.acceptance_rate:.0%}; by position {by_position}), {usage.mean_accepted_length:.2f} tokens a round, "
        f"{usage.rollbacks} rollbacks"
    )


def _draft_styles(round: Round) -> list[str]:
    accepted = round.accepted_count
    return [STYLES["accepted"] if index < accepted else _REJECTED for index in range(len(round.draft_token_ids))]


def _tokens(texts: Sequence[str], styles: Sequence[str]) -> Text:
    line = Text()
    for index, (text, style) in enumerate(zip(texts, styles, strict=True)):
        line.append("|" if index else "", "dim").append(text.translate(_VISIBLE), style)
    return line
