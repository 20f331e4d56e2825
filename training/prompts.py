"""Openings of user turns, made from the lists in `prompts.toml`, for the target to complete or answer.

An opening that is complete is a whole request; one that is not is continued by the target in the user's voice. They
cover what chat users ask of a model, and were written without regard to any benchmark's questions.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import dataclass
from pathlib import Path

_LISTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


@dataclass(frozen=True)
class Opening:
    """How a user turn begins; `complete` when that is all of it."""

    text: str
    complete: bool


def chat(rng: random.Random) -> Opening:
    """Any request without a long passage."""
    make = rng.choices((_request, _half, _question, _sum, _german, _code), weights=(20, 22, 22, 16, 14, 6))[0]
    return make(rng)


def passage(rng: random.Random) -> Opening:
    """Asks for a text long enough to serve as somebody else's passage."""
    return Opening(_fill(rng.choice(_LISTS["passages"]), rng), True)


def about_passage(rng: random.Random) -> tuple[str, Opening]:
    """What stands before a passage and what stands after it: either is a task, and the other is empty."""
    if rng.random() < 0.5:
        return rng.choice(_LISTS["summarise"]), Opening("", True)
    question = rng.choice(_LISTS["questions"])
    return "", Opening("\n" + (question.capitalize() if rng.random() < 0.5 else question), False)


def _fill(form: str, rng: random.Random) -> str:
    topic, other = rng.sample(_LISTS["topics"], 2)
    return form.format(topic=topic, other=other)


def _request(rng: random.Random) -> Opening:
    return Opening(_fill(rng.choice(_LISTS["requests"]), rng), True)


def _half(rng: random.Random) -> Opening:
    return Opening(rng.choice(_LISTS["halves"]), False)


def _question(rng: random.Random) -> Opening:
    question = rng.choice(_LISTS["questions"])
    return Opening(question if rng.random() < 0.6 else question.capitalize(), False)


def _sum(rng: random.Random) -> Opening:
    name, other = rng.sample(_LISTS["names"], 2)
    figures = {"a": rng.randint(2, 120), "b": rng.randint(2, 25)}
    text = rng.choice(_LISTS["sums"]).format(name=name, other=other, thing=rng.choice(_LISTS["things"]), **figures)
    return Opening(text, text.endswith("?"))


def _german(rng: random.Random) -> Opening:
    sentence = " ".join(rng.choice(_LISTS[f"german_{part}"]) for part in ("who", "does", "when", "what"))
    task = rng.choice(("Translate German to English: ", "Translate to English: ", "What does this mean in English? "))
    if rng.random() < 0.4:
        return Opening(task + " ".join(sentence.split()[: rng.randint(1, 6)]), False)
    return Opening(task + sentence, True)


def _code(rng: random.Random) -> Opening:
    return Opening(rng.choice(_LISTS["code"]), False)
