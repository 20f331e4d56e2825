"""The timeline of one request: for each round what was drafted, what was accepted, and who worked or waited when.

A verdict says how long the target waited and how long its step took, and the draft how long it drafted; the step is
drawn to end with the round, the wait before it, and the draft's work to end where the wait ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.bench.records import Round, Run
from forerun.bench.report.svg import WIDTH, Frame, Scale, drawing, line, nice_ticks, rectangle, tag, text, title

SHOWN = 12
_LEFT = 90.0
_SIZE = 11.0  # of a token's mark
_BAR = 20.0
_VISIBLE = str.maketrans({"\n": "↵", "\r": "␍", "\t": "→", " ": "\u00a0"})


def timelines(run: Run) -> dict[str, list[Round]]:
    """One request's rounds for each variant of which they were kept."""
    found: dict[str, list[Round]] = {}
    for done in run.passes:
        for request in done.requests:
            if request.timeline and not request.error:
                found.setdefault(done.variant, request.timeline)
    return found


def timeline(rounds: Sequence[Round], name: str) -> str:
    """The picture of the first rounds after the prompt's own."""
    shown = list(rounds[1 : SHOWN + 1]) or list(rounds)  # the first one holds the prompt
    if not shown:
        return ""
    tallest = max(max(len(round.draft_texts) + 1, len(round.committed_texts)) for round in shown)
    tokens, draft = 30 + tallest * (_SIZE + 3), 30 + tallest * (_SIZE + 3) + 34
    target = draft + _BAR + 14
    total = sum(round.round_ms for round in shown)
    frame = Frame(Scale(0, total or 1.0, _LEFT, WIDTH - 26), Scale(0, 1, target + _BAR + 8, 22))
    frame.axis_x(nice_ticks(0, total, 10), "milliseconds")
    for y, lane in ((tokens - 2, "tokens"), (draft + 14, "draft"), (target + 14, "target")):
        frame.parts += [text(_LEFT - 12, y, lane, "strong", "end")]
    now = 0.0
    for index, round in enumerate(shown):
        frame.parts += _round(frame, round, index, now, (tokens, draft, target))
        now += round.round_ms
    height = target + _BAR + 50
    return drawing(height, *_key(), *frame.parts, label=f"The first rounds of one request with {name}")


def _round(frame: Frame, round: Round, index: int, start: float, lanes: tuple[float, float, float]) -> list[str]:
    tokens, draft, target = lanes
    end = start + round.round_ms
    step = max(start, end - round.step_ms)
    wait = max(start, step - round.wait_ms)
    drafted = max(0.0, step - round.draft_ms)
    left, right = frame.x(start), frame.x(end)
    parts = [line(right, 24, right, target + _BAR + 8, "roundline")]
    if round.draft_ms:
        hint = f"drafted {len(round.draft_texts)} candidates in {round.draft_ms:.1f} ms"
        parts += [rectangle(frame.x(drafted), draft, frame.x(step) - frame.x(drafted), _BAR, "draft", hint)]
    waited = f"waited {round.wait_ms:.1f} ms"
    parts += [rectangle(frame.x(wait), target + 4, frame.x(step) - frame.x(wait), _BAR - 8, "wait", waited)]
    worked = f"step of {round.step_ms:.1f} ms, {round.batch_size} requests in it"
    parts += [rectangle(frame.x(step), target, right - frame.x(step), _BAR, "step", worked)]
    parts += _tokens(round, (left + right) / 2, tokens)
    words = "".join(round.committed_texts).translate(_VISIBLE)
    fits = int((right - left - 6) / 6.6)
    words = words if len(words) <= fits else words[: max(fits - 1, 0)] + "…"
    parts += [text((left + right) / 2, tokens + 18, words, "said", "middle")] if fits > 1 else []
    return parts


def _tokens(round: Round, x: float, base: float) -> list[str]:
    """A column that grows upwards: accepted candidates, then the target's own token, beside it what was rejected."""
    parts, pitch = [], _SIZE + 3
    for place, drafted in enumerate(round.draft_texts):
        y = base - (place + 1) * pitch
        if place < round.accepted:
            parts += [rectangle(x - _SIZE - 1, y, _SIZE, _SIZE, "accepted", f"accepted {drafted!r}")]
        else:
            parts += [_rejected(x - _SIZE - 1, y, f"rejected {drafted!r}")]
    if len(round.committed_texts) > round.accepted:
        y = base - (round.accepted + 0.5) * pitch - 1.5
        own = round.committed_texts[round.accepted]
        hint = f"the target's own {own!r}"
        parts += [tag("circle", title(hint), cx=x + _SIZE / 2 + 2, cy=y, r=_SIZE / 2, class_="own")]
    return parts


def _rejected(x: float, y: float, hint: str) -> str:
    inset = 3.0
    far = _SIZE - inset
    return "".join(
        (
            rectangle(x + 0.5, y + 0.5, _SIZE - 1, _SIZE - 1, "rejected", hint),
            line(x + inset, y + inset, x + far, y + far, "cross"),
            line(x + inset, y + far, x + far, y + inset, "cross"),
        )
    )


def _key() -> list[str]:
    parts = [rectangle(_LEFT, 4, _SIZE, _SIZE, "accepted"), text(_LEFT + 16, 14, "accepted", "note")]
    parts += [_rejected(_LEFT + 80, 4, ""), text(_LEFT + 96, 14, "rejected", "note")]
    parts += [tag("circle", cx=_LEFT + 163, cy=9.5, r=_SIZE / 2, class_="own")]
    parts += [text(_LEFT + 174, 14, "the target's own token", "note")]
    for x, css, meaning in ((322.0, "draft", "drafting"), (402.0, "wait", "waiting"), (480.0, "step", "verifying")):
        parts += [rectangle(_LEFT + x, 4, _SIZE, _SIZE, css), text(_LEFT + x + 16, 14, meaning, "note")]
    return [*parts, text(_LEFT + 566, 14, "blank: hops between the services", "note")]
