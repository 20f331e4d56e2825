"""Whatever network and services do, the output is that of plain decoding, and afterwards speculation resumes.

The default profile is derandomised, so every run sees the same examples. FORERUN_SIMULATION_EXAMPLES multiplies them
and draws new ones; the seed is printed, and FORERUN_SIMULATION_SEED sets it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, note, seed, settings

from tests.protocol.network import Weather
from tests.protocol.scenarios import STEADY, STEADY_RUN_AHEAD, Scenario, passing_storms, scenarios
from tests.protocol.world import World

FACTOR = int(os.environ.get("FORERUN_SIMULATION_EXAMPLES", "1"))
SEED = int(os.environ.get("FORERUN_SIMULATION_SEED", random.SystemRandom().getrandbits(32)))

Test = Callable[[], None]


def profile(examples: int) -> Callable[[Test], Test]:
    """Settings of one test."""
    fixed = FACTOR == 1 and "FORERUN_SIMULATION_SEED" not in os.environ

    def decorate(test: Test) -> Test:
        test = settings(
            max_examples=examples * FACTOR,
            derandomize=fixed,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )(test)
        if fixed:
            return test
        print(f"FORERUN_SIMULATION_SEED={SEED} FORERUN_SIMULATION_EXAMPLES={FACTOR}")
        return seed(SEED)(test)

    return decorate


def simulate(scenario: Scenario, hold_at: int | None = None) -> World:
    """Runs a world to its end; tells its story if something is wrong."""
    world = World(scenario, hold_at)
    try:
        world.run()
    except BaseException:
        note(world.tell())
        raise
    return world


@profile(1100)
@given(scenarios())
def test_the_output_is_that_of_plain_decoding_whatever_happens(scenario: Scenario) -> None:
    simulate(scenario)


@profile(450)
@given(scenarios(patience=("endless",)))
def test_a_target_that_always_waits_for_candidates_is_never_left_waiting(scenario: Scenario) -> None:
    simulate(scenario)


@profile(350)
@given(scenarios(drafts=("malicious", "malicious", "right")))
def test_a_malicious_draft_fails_no_session_and_changes_no_text(scenario: Scenario) -> None:
    simulate(scenario)


@profile(250)
@given(passing_storms())
def test_after_the_last_fault_candidates_are_accepted_again(scenario: Scenario) -> None:
    check_resumption(scenario)


STORM = Weather(delay_ms=(0.1, 3.0), lost=0.1)
SHUFFLE = Weather(delay_ms=(0.1, 3.0), overtaking=True, scrambling=True)


@pytest.mark.parametrize(
    "scenario",
    [
        # Run-ahead never closed the gap that lost, or overtaken, candidates had left.
        Scenario(seed=0, weather=STORM, sessions=(STEADY_RUN_AHEAD,)),
        Scenario(seed=0, weather=SHUFFLE, sessions=(STEADY_RUN_AHEAD,)),
        # So did offers that were lost between gateway and target, without any run-ahead.
        Scenario(seed=3, weather=STORM, sessions=(STEADY, STEADY)),
        # The Rollback was lost, and the commits after it did not say again that the epoch was dead.
        Scenario(seed=10, weather=STORM, sessions=(STEADY_RUN_AHEAD,)),
    ],
    ids=["a gap", "a gap by overtaking", "lost offers", "a lost rollback"],
)
def test_what_once_ended_speculation_for_good(scenario: Scenario) -> None:
    check_resumption(scenario)


def check_resumption(scenario: Scenario) -> None:
    """Holds all sessions at a few tokens until the faults are over; the rest must be well speculated."""
    world = simulate(scenario, hold_at=12)
    for client in world.clients:
        assert client.tally.committed > 40
        assert client.tally.mean_accepted_length > 1.5, client.tally
