"""A target whose cache reuses prefixes says what one without says, and computes less for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.v1 import target_pb2
from tests.models import make_tiny_model
from tests.target_service.rig import BLOCK_SIZE, OUTPUT, Rig

LONG = [(11 * i) % 300 + 3 for i in range(101)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "model")


def test_the_same_prompt_again_is_not_computed_again(folder: Path) -> None:
    plain, reusing = Rig(folder, reuse=False), Rig(folder, reuse=True)
    expected = plain.answer(LONG)
    assert reusing.answer(LONG) == expected
    first = reusing.fed
    assert (first, reusing.cache.used_blocks) == (len(LONG) + OUTPUT - 1, 0)
    assert reusing.answer(LONG) == expected
    assert reusing.fed - first == 1 + OUTPUT - 1
    assert reusing.engine.read_stats().reused_prompt_tokens == len(LONG) - 1


def test_a_next_turn_finds_the_answer_before_it(folder: Path) -> None:
    plain, reusing = Rig(folder, reuse=False), Rig(folder, reuse=True)
    answer = reusing.answer(LONG)
    turn = [*LONG, *answer, 5, 6, 7]
    before = reusing.fed
    assert reusing.answer(turn) == plain.answer(turn)
    whole = (len(LONG) + OUTPUT - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert reusing.fed - before == len(turn) - whole + OUTPUT - 1


def test_sessions_that_begin_alike_at_once_compute_most_of_it_once(folder: Path) -> None:
    """All come before any is computed; those that wait for their turn take over what the first one did."""
    plain, reusing = Rig(folder, reuse=False), Rig(folder, reuse=True)
    prompts = [[*LONG, 5 + number] for number in range(4)]
    expected = [plain.answer(prompt) for prompt in prompts]
    numbers = [reusing.open(prompt) for prompt in prompts]
    committed = reusing.run()
    assert [committed[number] for number in numbers] == expected
    assert plain.fed - reusing.fed > 2 * 96


@pytest.mark.parametrize("reuse", [False, True])
def test_a_preempted_session_goes_on_with_what_is_left_of_its_cache(folder: Path, reuse: bool) -> None:
    """Both prompts fit, their answers do not: the younger one gives way, and finds its cache again later."""
    plain, tight = Rig(folder, reuse=False), Rig(folder, reuse, blocks=53)
    prompts = [LONG, [*reversed(LONG)]]
    expected = [plain.answer(prompt) for prompt in prompts]
    numbers = [tight.open(prompt) for prompt in prompts]
    committed = tight.run()
    assert [committed[number] for number in numbers] == expected
    assert tight.engine.read_stats().preemptions > 0
    again = tight.fed - 2 * (len(LONG) + OUTPUT - 1)
    assert 0 < again < 40 if reuse else again > 100
    assert tight.cache.used_blocks == 0


def test_a_session_whose_client_reads_again_takes_the_place_of_others_and_what_they_share(folder: Path) -> None:
    """It lost its cache while it was paused; its share of the step is cut when the others' cache becomes its own."""
    plain, tight = Rig(folder, reuse=False), Rig(folder, reuse=True, blocks=38)
    prompts = [LONG, [*LONG[:60], *reversed(LONG[:50])]]
    expected = [plain.answer(prompt) for prompt in prompts]
    paused = tight.open(prompts[0], commit_limit=len(LONG) + 2)
    head = tight.run()[paused]
    other = tight.open(prompts[1])
    for _ in range(3):
        tight.step()
    tight.say(paused, configure=target_pb2.ConfigureTarget(commit_limit=1000))
    committed = tight.run()
    assert [head + committed[paused], committed[other]] == expected
    assert tight.engine.read_stats().preemptions > 0
