"""The prompts to send: 48 of our own, a JSONL file of `turns` or `prompt`, or a ShareGPT file.

A line that cannot be used stops the run with its number, since a benchmark over fewer prompts than its reader
believes misleads.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from forerun.errors import InvalidArgument

BUILT_IN = "built-in (48 prompts)"
_PEOPLE = ("human", "user")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the user says, turn by turn. `index` is its place in the data set."""

    index: int
    category: str
    turns: tuple[str, ...]


def built_in() -> list[Prompt]:
    """Our own prompts: 8 each of chat, code, summarising, translation, extraction and maths."""
    return parse(resources.files("forerun.bench").joinpath("prompts.jsonl").read_text(encoding="utf-8"), BUILT_IN)


def load(path: Path) -> list[Prompt]:
    """The prompts of a file. Raises InvalidArgument that names the line, or the entry of a ShareGPT file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgument("dataset", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidArgument("dataset", f"{path} is not UTF-8 at byte {error.start}") from None
    return parse(text, str(path))


def parse(text: str, name: str) -> list[Prompt]:
    """The prompts of a file's text: a JSON list, or an object a line."""
    if text.lstrip().startswith("["):
        entries = [(f"{name} entry {number}", entry) for number, entry in enumerate(_json_list(text, name), 1)]
    else:
        lines = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
        entries = [(f"{name} line {number}", _json(line, f"{name} line {number}")) for number, line in lines]
    prompts = [_prompt(index, entry, where) for index, (where, entry) in enumerate(entries)]
    if not prompts:
        raise InvalidArgument("dataset", f"{name} holds no prompts")
    return prompts


def in_order(prompts: Sequence[Prompt], seed: int) -> list[int]:
    """Indices of all prompts, shuffled, the categories taking turns so that every stretch holds some of each."""
    groups: dict[str, list[int]] = defaultdict(list)
    for prompt in prompts:
        groups[prompt.category].append(prompt.index)
    shuffler = random.Random(seed)
    for group in groups.values():
        shuffler.shuffle(group)
    mixed = chain.from_iterable(zip_longest(*groups.values()))
    return [index for index in mixed if index is not None]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidArgument(where, f"is not JSON: {error}") from None


def _json_list(text: str, name: str) -> list[Any]:
    entries = _json(text, name)
    assert isinstance(entries, list)
    return entries


def _prompt(index: int, entry: Any, where: str) -> Prompt:
    if not isinstance(entry, dict):
        raise InvalidArgument(where, "is not an object")
    turns = _turns(entry, where)
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise InvalidArgument(where, "has no turn of the user, or an empty one")
    return Prompt(index, str(entry.get("category", "")), tuple(turns))


def _turns(entry: dict[str, Any], where: str) -> list[Any]:
    if isinstance(entry.get("turns"), list):
        return list(entry["turns"])
    if "prompt" in entry:
        return [entry["prompt"]]
    if isinstance(entry.get("conversations"), list):
        said = [turn for turn in entry["conversations"] if isinstance(turn, dict)]
        return [turn.get("value") for turn in said if turn.get("from") in _PEOPLE]
    raise InvalidArgument(where, "has none of turns (a list), prompt and conversations (a list)")
