"""A fingerprint changes with the meaning of ids and with nothing else; broken folders are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import FailedPrecondition
from forerun.vocabulary import Vocabulary, differences, read_vocabulary

Change = Callable[[dict[str, Any]], object]
ADDED = {"id": 3, "content": "<end>", "special": True, "normalized": False}


def write(folder: Path, change: Change = lambda files: None) -> Path:
    """A small checkpoint folder, after `change` edited the contents of its files."""
    files: dict[str, Any] = {
        "tokenizer.json": {
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
            "added_tokens": [dict(ADDED)],
        },
        "config.json": {"eos_token_id": 3, "vocab_size": 128},
    }
    change(files)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def read(folder: Path, change: Change) -> Vocabulary:
    return read_vocabulary(write(folder / "changed", change))


def test_counts_from_the_highest_id(tmp_path: Path) -> None:
    assert read_vocabulary(write(tmp_path)).size == 4
    assert read(tmp_path, lambda f: f["tokenizer.json"]["added_tokens"].append({"id": 9, "content": "<x>"})).size == 10


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f["config.json"].update(vocab_size=256),
        lambda f: f["tokenizer.json"]["model"].update(merges=[], dropout=0.1),
        lambda f: f["tokenizer.json"]["model"].update(vocab={"ab": 2, "b": 1, "a": 0}),
        lambda f: f["tokenizer.json"].update(version="2.0", post_processor={"type": "ByteLevel"}),
        lambda f: f["tokenizer.json"]["model"].update(vocab=[["a", -1.0], ["b", -2.0], ["ab", 0.0]]),
        lambda f: f.update({"generation_config.json": {"eos_token_id": [3]}}),
        lambda f: f["tokenizer.json"]["model"]["vocab"].update({"<end>": 3}),
    ],
    ids=["padding", "merges", "order", "version", "unigram", "end_tokens_elsewhere", "added_listed_twice"],
)
def test_the_fingerprint_ignores_what_gives_ids_no_meaning(tmp_path: Path, change: Change) -> None:
    assert read(tmp_path, change).fingerprint == read_vocabulary(write(tmp_path)).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f["tokenizer.json"]["model"].update(vocab={"a": 1, "b": 0, "ab": 2}),
        lambda f: f["tokenizer.json"]["model"].update(vocab={"a": 0, "b": 1, "aB": 2}),
        lambda f: f["tokenizer.json"]["added_tokens"][0].update(special=False),
        lambda f: f["tokenizer.json"]["added_tokens"][0].update(content="<END>"),
        lambda f: f["tokenizer.json"]["added_tokens"].append({"id": 4, "content": "<x>"}),
        lambda f: f["config.json"].update(eos_token_id=[2, 3]),
        lambda f: f["config.json"].update(eos_token_id=None),
    ],
    ids=["swapped", "respelt", "not_special", "added_respelt", "one_more", "end_tokens", "no_end_token"],
)
def test_the_fingerprint_sees_what_does(tmp_path: Path, change: Change) -> None:
    assert read(tmp_path, change).fingerprint != read_vocabulary(write(tmp_path)).fingerprint


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: None, (3,)),
        (lambda f: f.update({"generation_config.json": {"eos_token_id": [2, 1, 2]}}), (1, 2)),
        (lambda f: f.update({"generation_config.json": {"eos_token_id": None}}), (3,)),
        (lambda f: f.update({"config.json": {}, "tokenizer_config.json": {"eos_token": {"content": "b"}}}), (1,)),
        (lambda f: f.update({"config.json": {}, "tokenizer_config.json": {"eos_token": "ab"}}), (2,)),
        (lambda f: f.update({"config.json": {}}), ()),
    ],
)
def test_end_tokens_come_from_the_first_file_that_names_them(
    tmp_path: Path, change: Change, expected: tuple[int, ...]
) -> None:
    assert read(tmp_path, change).end_token_ids == expected


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / name).unlink()
    with pytest.raises(FailedPrecondition, match=rf"{name}: is missing"):
        read_vocabulary(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", {"model": {"vocab": {}}}),
        ("tokenizer.json", {"model": {"vocab": {"a": "0"}}}),
        ("tokenizer.json", {"model": {"vocab": ["a"]}}),
        ("config.json", {"eos_token_id": "</s>"}),
        ("config.json", {"eos_token_id": 99}),
        ("config.json", "nothing"),
        ("generation_config.json", {"eos_token_id": [True]}),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: object) -> None:
    with pytest.raises(FailedPrecondition, match=name):
        read(tmp_path, lambda files: files.update({name: content}))


def told(folder: Path, change: Change) -> list[str]:
    return differences(write(folder / "one"), write(folder / "other", change))


def test_equal_vocabularies_have_no_differences(tmp_path: Path) -> None:
    assert told(tmp_path, lambda files: files["config.json"].update(vocab_size=64)) == []


def test_differences_name_size_ids_and_end_tokens(tmp_path: Path) -> None:
    def change(files: dict[str, Any]) -> None:
        files["tokenizer.json"]["model"]["vocab"] = {"a": 0, "c": 1, "ab": 2, "d": 4}
        files["config.json"]["eos_token_id"] = [3, 4]

    assert told(tmp_path, change) == [
        "the sizes differ: 4 tokens and 5",
        "2 ids mean something else: 1 (ordinary 'b' and ordinary 'c'), 4 (nothing and ordinary 'd')",
        "the end tokens differ: 3 and 3, 4",
    ]


def test_only_the_first_of_many_differing_ids_are_spelled_out(tmp_path: Path) -> None:
    def change(files: dict[str, Any]) -> None:
        files["tokenizer.json"]["model"]["vocab"] |= {f"t{i}": i for i in range(10, 30)}

    _, ids = told(tmp_path, change)
    assert ids.startswith("20 ids mean something else, the first are 10 (nothing and ordinary 't10')")
    assert "'t14'" in ids and "'t15'" not in ids
