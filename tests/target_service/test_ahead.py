"""Steps begun before the last one's end: the same tokens, and none of them for those who need another kind of step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forerun.v1 import target_pb2, types_pb2
from tests.models import make_tiny_model
from tests.target_service.rig import OUTPUT, VOCABULARY, Rig

PROMPTS = [[(7 * i + number) % 300 + 3 for i in range(5 + 9 * number)] for number in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "model")


def answers(rig: Rig, **changes: Any) -> list[list[int]]:
    """Of four sessions of different lengths, opened one after the other while the others go on."""
    numbers = []
    for i, prompt in enumerate(PROMPTS):
        numbers.append(rig.open(prompt, **{"max_tokens": OUTPUT + 5 * i} | changes))
        rig.step()
        rig.step()
    committed = rig.run()
    return [committed[number] for number in numbers]


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.9, "seed": 3}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("reuse", [False, True])
def test_plain_sessions_run_ahead_and_say_the_same(folder: Path, changes: dict[str, Any], reuse: bool) -> None:
    waiting, ahead = Rig(folder, reuse), Rig(folder, reuse, overlaps=True)
    assert answers(ahead, **changes) == answers(waiting, **changes)
    assert (ahead.cache.used_blocks, waiting.ahead) == (0, 0)
    assert ahead.ahead > OUTPUT


def test_a_session_that_ends_by_its_token_has_one_row_for_nothing(folder: Path) -> None:
    said = Rig(folder, reuse=False).answer(PROMPTS[0])
    ending = {"ignore_eos": False, "stop_token_ids": [said[4]]}
    waiting, ahead = Rig(folder, reuse=True), Rig(folder, reuse=True, overlaps=True)
    expected = answers(waiting, **ending)
    assert answers(ahead, **ending) == expected
    assert len(expected[0]) <= 5
    assert ahead.fed - waiting.fed <= len(PROMPTS)
    assert ahead.cache.used_blocks == 0


def test_no_token_beyond_the_credit(folder: Path) -> None:
    rig = Rig(folder, reuse=False, overlaps=True)
    number = rig.open(PROMPTS[1], commit_limit=len(PROMPTS[1]) + 5)
    assert len(rig.run()[number]) == 5
    rig.say(number, configure=target_pb2.ConfigureTarget(commit_limit=1000))
    assert len(rig.run()[number]) == OUTPUT - 5


@pytest.mark.parametrize(
    "changes", [{"logprobs": 2}, {"frequency_penalty": 0.5}, {"min_tokens": OUTPUT}, {"temperature": 1.0, "top_p": 0.9}]
)
def test_what_the_host_must_look_at_is_not_begun_ahead(folder: Path, changes: dict[str, Any]) -> None:
    rig = Rig(folder, reuse=False, overlaps=True)
    number = rig.open(PROMPTS[0], max_tokens=OUTPUT, **changes)
    assert len(rig.run()[number]) == OUTPUT
    assert rig.ahead == 0


def test_a_session_that_waits_for_candidates_is_not_overtaken(folder: Path) -> None:
    rig = Rig(folder, reuse=False, overlaps=True)
    number = rig.open(PROMPTS[0])
    rig.say(number, configure=target_pb2.ConfigureTarget(draft_length=2))
    assert len(rig.run()[number]) == OUTPUT
    assert rig.ahead == 0


def test_a_full_cache_ends_the_running_ahead_not_the_session(folder: Path) -> None:
    waiting, ahead = Rig(folder, reuse=False, blocks=12), Rig(folder, reuse=False, blocks=12, overlaps=True)
    assert answers(ahead) == answers(waiting)
    assert ahead.engine.read_stats().preemptions > 0


def test_a_step_that_failed_takes_those_begun_behind_it_along(folder: Path) -> None:
    rig = Rig(folder, reuse=False, overlaps=True)
    rig.open(PROMPTS[0])
    step = rig.engine.plan(rig.now)
    assert step is not None and not isinstance(step, float)
    behind = rig.engine.plan_ahead(step, rig.now)
    assert behind is not None
    rig.engine.fail(step, RuntimeError("no"), rig.now)
    rig.engine.complete(behind, [[]], rig.now)
    (entry,) = rig.stream.take()
    assert entry.failed.detail == "the step failed: no"
    assert rig.cache.used_blocks == 0
    assert rig.open([VOCABULARY - 1]) in rig.run()
    assert isinstance(rig.engine.stats, types_pb2.ServiceStats)
