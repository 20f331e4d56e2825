"""A step as the worker gets it: values that nothing changes any more, made of shares and their sessions.

A session may go on in a step that is made while the one before still runs: where it draws one plain token, all is known
but that token, and `model_runner.drawn_by_row` stands for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forerun.runtime.model_runner import ForwardSlice, drawn_by_row
from forerun.runtime.sampling import DrawRequest, is_bare
from target_service.scheduler import Share
from target_service.session import TargetSession


@dataclass(frozen=True, slots=True)
class Part:
    """One session's part of a step."""

    session: TargetSession
    forward: ForwardSlice
    draw: DrawRequest | None  # None for a chunk of a prompt that is not its last
    candidates: tuple[int, ...]
    epoch: int
    wait_s: float

    @property
    def plain(self) -> bool:
        """Whether it draws one token and nothing else, with no candidates in sight."""
        return self.draw is not None and not self.candidates and self.session.wanted_candidates == 0


@dataclass(frozen=True, slots=True)
class Step:
    """What a worker executes: one forward over all parts, then the draws. Outcome: draws by drawing part."""

    parts: tuple[Part, ...]
    shares: tuple[Share, ...]
    started: float  # monotonic seconds
    started_unix_ns: int

    @property
    def bare(self) -> bool:
        """Whether all its draws are bare, so that a step may begin before its end."""
        return all(part.draw is None or is_bare(part.draw) for part in self.parts)

    def plain_rows(self) -> Iterator[tuple[int, Part]]:
        """Its plain parts, each with the number of its row among those drawn."""
        row = 0
        for part in self.parts:
            if part.plain:
                yield row, part
            row += 0 if part.draw is None else part.draw.row_count

    def begun(self, at: float) -> Step:
        """The same step, if it began later than it was planned: when the one before it had ended."""
        late = max(0.0, at - self.started)
        return replace(self, started=self.started + late, started_unix_ns=self.started_unix_ns + round(late * 1e9))


def freeze(shares: Sequence[Share], end_token_ids: tuple[int, ...], now: float) -> Step:
    """The step of these shares; their sequences have the blocks they need."""
    return freeze_ahead((), shares, end_token_ids, now)


def _freeze(share: Share, end_token_ids: tuple[int, ...], now: float) -> Part:
    session = share.session
    sequence = session.sequence
    start, end = sequence.computed_length, sequence.computed_length + share.feed_count
    candidates = tuple(session.candidates.token_ids[: share.candidate_count])
    forward = ForwardSlice(
        token_ids=tuple(sequence.token_ids[start:end]) + candidates,
        start=start,
        block_table=tuple(sequence.block_table),
        logits_count=1 + len(candidates) if share.draws else 0,
    )
    draw = None
    if share.draws:
        history = tuple(sequence.token_ids) + candidates
        draw = DrawRequest(session.params, history, session.prompt_length, end, 1 + len(candidates), end_token_ids)
    wait_s = max(0.0, now - session.idle_since)
    return Part(session, forward, draw, candidates, session.candidates.epoch if candidates else 0, wait_s)


def freeze_ahead(
    going: Sequence[tuple[int, Part]], shares: Sequence[Share], end_token_ids: tuple[int, ...], now: float
) -> Step:
    """The step behind one that runs: of that one the plain parts that go on, with their rows, one token each; shares.

    All sequences have the blocks they need; those that go on, for the token that is being drawn.
    """
    plain = [_freeze_ahead(row, part) for row, part in going]
    parts = (*plain, *(_freeze(share, end_token_ids, now) for share in shares))
    return Step(parts, (*(Share(part.session, 1, 0, True) for part in plain), *shares), now, time.time_ns())


def _freeze_ahead(row: int, part: Part) -> Part:
    assert part.draw is not None
    sequence, position = part.session.sequence, part.draw.first_position
    assert len(sequence) == position, (sequence, position)
    forward = ForwardSlice((drawn_by_row(row),), position, tuple(sequence.block_table), 1)
    # the last token is not known, and nothing looks at it: the draw is bare
    draw = replace(part.draw, token_ids=(*sequence.token_ids, 0), first_position=position + 1)
    return Part(part.session, forward, draw, (), 0, 0.0)
