"""What prompts cost is counted for each token of theirs, with a draft and without one."""

from __future__ import annotations

import pytest

from gateway.prompt_costs import MEMORY_TOKENS, PRIOR_TOKENS, PromptCosts, PromptShare


def test_both_ways_cost_alike_until_much_is_known() -> None:
    costs = PromptCosts()
    assert costs.seconds(True) == costs.seconds(False) == 0.0
    costs.add_prompt(100, drafted=True)
    costs.add_delay(2.0, drafted=True)
    assert costs.seconds(True) == pytest.approx(0.02)
    assert costs.seconds(False) == pytest.approx(0.02)


def test_with_much_measured_each_way_costs_what_it_did() -> None:
    costs = PromptCosts()
    for drafted, seconds in ((True, 3.0), (False, 1.0)):
        costs.add_prompt(20 * PRIOR_TOKENS, drafted)
        costs.add_delay(20 * PRIOR_TOKENS * seconds, drafted)
    assert costs.seconds(True) == pytest.approx(3.0, rel=0.05)
    assert costs.seconds(False) == pytest.approx(1.0, rel=0.05)


def test_what_was_measured_long_ago_fades() -> None:
    costs = PromptCosts()
    costs.add_prompt(MEMORY_TOKENS, drafted=False)
    costs.add_delay(float(MEMORY_TOKENS), drafted=False)
    for _ in range(20):
        costs.add_prompt(MEMORY_TOKENS // 2, drafted=False)
        costs.add_delay(2.0 * (MEMORY_TOKENS // 2), drafted=False)
    assert costs.seconds(False) == pytest.approx(2.0, rel=0.01)


def test_rounds_that_happen_to_be_short_make_nothing_cheaper_than_free() -> None:
    costs = PromptCosts()
    costs.add_prompt(100, drafted=False)
    costs.add_delay(-1.0, drafted=False)
    assert costs.seconds(False) == 0.0


def test_the_share_of_prompts_follows_the_load() -> None:
    share = PromptShare()
    assert share.tokens == 0.0
    for prompt, expected in ((30, 3.0), (10, 1.0)):
        for _ in range(4 * MEMORY_TOKENS // 1000):
            share.add(prompt=prompt * 100, output=1000)
        assert share.tokens == pytest.approx(expected, rel=0.2)
