"""The whole check on tiny models: what is measured, what is refused, and the fields of its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draft_service.check_pair.__main__ import main
from draft_service.check_pair.measure import STEP_SIZES
from draft_service.check_pair.pair import Model, load_pair
from forerun.config import DraftConfig, TargetConfig
from tests.models import make_tiny_draft, make_tiny_model

PROMPTS, TOKENS = 3, 20


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("pair") / "target")


def flags(target: Path, draft: str, *more: str) -> list[str]:
    given = {
        "model": draft,
        "target": str(target),
        "device": "cpu",
        "dtype": "float32",
        "threads": "1",
        "target-dtype": "float32",
        "target-device": "cpu",
        "target-threads": "1",
        "draft-length": "3",
        "prompts": str(PROMPTS),
        "tokens": str(TOKENS),
    }
    options = [f"--{name}={value}" for name, value in given.items()]
    return [*options, "--temperature=0", *more]


def checked(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_target_is_its_own_perfect_draft(
    target: Path, capsys: pytest.CaptureFixture[str], temperature: float
) -> None:
    found = checked(capsys, flags(target, str(target), f"--temperature={temperature}"))
    assert found["acceptance_by_position"] == [1.0] * 3
    for length, one in found["drafters"]["model"].items():
        assert one["acceptance_by_position"] == [1.0] * int(length)
    assert found["temperature"] == temperature


def test_the_json_holds_what_was_measured(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft = make_tiny_draft(tmp_path / "draft", target, noise=0.1)
    found = checked(capsys, flags(target, str(draft)))
    assert found["fits"] is True
    assert (found["prompts"], found["vocabulary_size"], found["draft_vocabulary"]) == (PROMPTS, 320, 320)
    assert PROMPTS <= found["tokens"] <= PROMPTS * TOKENS
    assert list(found["step_ms"]["target"]) == [str(size) for size in STEP_SIZES]
    assert min(found["step_ms"]["target"].values()) > 0 and found["step_ms"]["draft"] > 0
    assert list(found["drafters"]) == ["ngram", "model", "ngram+model"]
    assert all(list(one) == [str(k) for k in range(1, 9)] for one in found["drafters"].values())
    lengths = [one["mean_accepted_length"] for one in found["drafters"]["model"].values()]
    assert 1.0 < lengths[0] <= lengths[-1] < 9.0
    assert found["acceptance_by_position"] == sorted(found["acceptance_by_position"], reverse=True)
    assert set(found["advice"]) == {"speculate", "drafter", "draft_length", "ratio", "words"}


def test_a_restricted_head_is_told(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(target, str(target), "--vocabulary=64")) == 0
    assert "of which the draft proposes 64" in capsys.readouterr().out


def test_without_json_it_is_a_table_and_words(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(target, "ngram")) == 0
    out = capsys.readouterr().out
    assert "ngram a round" in out and "A plain step of the target takes" in out
    assert "model a round" not in out


def test_another_vocabulary_is_refused_with_the_difference(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_tiny_model(tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (token for token, token_id in vocabulary.items() if token_id in (10, 11))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert main([*flags(target, str(other)), "--json"]) == 1
    streams = capsys.readouterr()
    answer = json.loads(streams.out)
    assert answer["fits"] is False
    assert "2 ids mean something else: 10 (ordinary" in answer["differences"][0]
    line = streams.err.splitlines()[-1]
    assert line.startswith("forerun check-pair: ") and "different vocabularies" in line


def test_a_model_that_cannot_be_had_is_one_line(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (target.parent / "empty").mkdir(exist_ok=True)
    assert main(flags(target, str(target.parent / "empty"))) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("forerun check-pair: ")


def test_a_restricted_draft_is_measured_restricted(target: Path, tmp_path: Path) -> None:
    config = DraftConfig(model=str(target), target=str(target), device="cpu", threads=1, vocabulary=64)
    large = TargetConfig(model=str(target), device="cpu", threads=1)
    draft = load_pair(large, config, tmp_path, ["hello"], 16).draft
    assert isinstance(draft, Model) and draft.head is not None and len(draft.head.token_ids) == 64
