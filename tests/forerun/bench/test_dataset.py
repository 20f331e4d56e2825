"""The prompts: our own, and files in three forms, with the line named that cannot be used."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from forerun.bench.dataset import built_in, in_order, load, parse
from forerun.errors import InvalidArgument


def test_the_built_in_prompts_are_48_in_six_kinds() -> None:
    prompts = built_in()
    kinds = Counter(prompt.category for prompt in prompts)
    assert kinds == dict.fromkeys(("chat", "code", "summarising", "translation", "extraction", "maths"), 8)
    assert len({prompt.turns[0] for prompt in prompts}) == 48
    passages = [prompt.turns[0] for prompt in prompts if prompt.category in ("summarising", "extraction")]
    assert all(len(passage.split()) > 60 for passage in passages)


def test_a_file_has_turns_or_a_prompt_a_line() -> None:
    text = '{"turns": ["one", "two"], "category": "x"}\n\n{"prompt": "three", "extra": 1}\n'
    prompts = parse(text, "f.jsonl")
    assert [(prompt.index, prompt.category, prompt.turns) for prompt in prompts] == [
        (0, "x", ("one", "two")),
        (1, "", ("three",)),
    ]


def test_sharegpt_takes_what_the_user_said() -> None:
    said = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}, {"from": "user", "value": "bye"}]
    (prompt,) = parse(json.dumps([{"id": "a", "conversations": said}]), "s.json")
    assert prompt.turns == ("hi", "bye")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', "f line 2: is not JSON"),
        ('{"prompt": "a"}\n\n["b"]\n', "f line 3: is not an object"),
        ('{"question": "a"}\n', "f line 1: has none of turns"),
        ('{"turns": ["a", 3]}\n', "f line 1: has no turn of the user, or an empty one"),
        ('{"turns": []}\n', "f line 1: has no turn"),
        ('[{"conversations": [{"from": "gpt", "value": "a"}]}]', "f entry 1: has no turn"),
        ("[1, 2", "f: is not JSON"),
        ("\n", "f holds no prompts"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse(text, "f")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot read .*none\.jsonl: No such file"):
        load(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(InvalidArgument, match="is not UTF-8 at byte 12"):
        load(tmp_path / "binary")


def test_kinds_take_turns_and_the_order_follows_the_seed() -> None:
    prompts = built_in()
    order = in_order(prompts, seed=1)
    assert sorted(order) == list(range(48))
    assert len({prompts[index].category for index in order[:6]}) == 6
    assert order == in_order(prompts, seed=1) != in_order(prompts, seed=2)
