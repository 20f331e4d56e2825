"""What two models must have in common to speculate together: the meaning of each token id.

Reads the id-to-token map, the added tokens and the end tokens of a checkpoint folder and reduces them to a
fingerprint, so that services can compare vocabularies in a handshake, and says in words how two differ. It encodes and
decodes nothing; it reads the JSON files directly, in milliseconds and with neither torch nor a tokenizer library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import FailedPrecondition

# What an id is, as part of its fingerprint: the same string behaves differently as a special token.
_ORDINARY, _ADDED, _SPECIAL = b"o", b"a", b"s"
_KINDS = {_ORDINARY: "ordinary", _ADDED: "added", _SPECIAL: "special"}
_SHOWN_IDS = 5  # differing ids that are spelled out


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids of one checkpoint. The logits of a model may be wider than `size`; the excess means nothing."""

    size: int  # highest id + 1
    end_token_ids: tuple[int, ...]  # ascending; empty when the checkpoint names none
    fingerprint: str  # sha256, hex


def read_vocabulary(folder: Path | str) -> Vocabulary:
    """The vocabulary of a checkpoint folder. Raises FailedPrecondition that names a missing or broken file."""
    folder = Path(folder)
    path = folder / "tokenizer.json"
    entries = _entries(read_json(path), path)
    size = max(entries, default=-1) + 1
    if size == 0:
        raise FailedPrecondition(f"{path}: holds no tokens")
    end_token_ids = _end_token_ids(folder, entries)
    return Vocabulary(size, end_token_ids, _fingerprint(entries, end_token_ids))


def differences(one: Path, other: Path) -> list[str]:
    """What keeps two checkpoint folders from having one vocabulary, a sentence each; empty if nothing does."""
    mine, theirs = (_entries(read_json(folder / "tokenizer.json"), folder) for folder in (one, other))
    found = []
    if len(mine) != len(theirs):
        found.append(f"the sizes differ: {len(mine):,} tokens and {len(theirs):,}")
    differing = [
        token_id for token_id in sorted(mine.keys() | theirs.keys()) if mine.get(token_id) != theirs.get(token_id)
    ]
    if differing:
        shown = ", ".join(
            f"{token_id} ({_told(mine.get(token_id))} and {_told(theirs.get(token_id))})"
            for token_id in differing[:_SHOWN_IDS]
        )
        more = ", the first are" if len(differing) > _SHOWN_IDS else ":"
        found.append(f"{len(differing):,} ids mean something else{more} {shown}")
    ends = _end_token_ids(one, mine), _end_token_ids(other, theirs)
    if ends[0] != ends[1]:
        found.append(f"the end tokens differ: {_listed(ends[0])} and {_listed(ends[1])}")
    return found


def _told(entry: tuple[str, bytes] | None) -> str:
    return f"{_KINDS[entry[1]]} {entry[0]!r}" if entry is not None else "nothing"


def _listed(token_ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, token_ids)) or "none"


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """The JSON object in a checkpoint's file; an empty one when an optional file is missing."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        if optional:
            return {}
        raise FailedPrecondition(f"{path}: is missing; a checkpoint folder needs it") from None
    except OSError as error:
        raise FailedPrecondition(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # UnicodeDecodeError is one too
        raise FailedPrecondition(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise FailedPrecondition(f"{path}: must hold a JSON object")
    return value


def _entries(tokenizer: Mapping[str, Any], path: Path) -> dict[int, tuple[str, bytes]]:
    """Token id -> (token, kind). An added token overrides the model's entry of the same id."""
    try:
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram: position is the id, pairs of token and score
            entries = {token_id: (token, _ORDINARY) for token_id, (token, _score) in enumerate(vocabulary)}
        else:
            entries = {token_id: (token, _ORDINARY) for token, token_id in vocabulary.items()}
        for added in tokenizer.get("added_tokens") or ():
            entries[added["id"]] = (added["content"], _SPECIAL if added.get("special") else _ADDED)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FailedPrecondition(f"{path}: is not a tokenizer of the Hugging Face format: {error!r}") from error
    if not all(_is_id(token_id) and isinstance(token, str) for token_id, (token, _) in entries.items()):
        raise FailedPrecondition(f"{path}: maps tokens to something other than ids")
    return entries


def _end_token_ids(folder: Path, entries: Mapping[int, tuple[str, bytes]]) -> tuple[int, ...]:
    """The first of generation_config, config and tokenizer_config that names end tokens decides."""
    for name, optional in (("generation_config.json", True), ("config.json", False)):
        path = folder / name
        named = read_json(path, optional).get("eos_token_id")
        if named is None:
            continue
        ids = named if isinstance(named, list) else [named]
        for token_id in ids:
            if not _is_id(token_id) or token_id not in entries:
                raise FailedPrecondition(f"{path}: eos_token_id {token_id!r} is not an id of tokenizer.json")
        return tuple(sorted(set(ids)))
    token = token_content(read_json(folder / "tokenizer_config.json", optional=True).get("eos_token"))
    return tuple(sorted(token_id for token_id, (content, _) in entries.items() if content == token))


def token_content(value: object) -> str | None:
    """A token as tokenizer_config.json writes it: its string, or an object that holds it as `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _fingerprint(entries: Mapping[int, tuple[str, bytes]], end_token_ids: tuple[int, ...]) -> str:
    digest = hashlib.sha256()
    for token_id in sorted(entries):
        token, kind = entries[token_id]
        content = token.encode("utf-8", "surrogatepass")
        # Lengths keep neighbouring tokens apart: ("ab", "c") must not look like ("a", "bc").
        digest.update(b"%d %s %d " % (token_id, kind, len(content)) + content)
    digest.update(b"end " + ",".join(map(str, end_token_ids)).encode())
    return digest.hexdigest()


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
