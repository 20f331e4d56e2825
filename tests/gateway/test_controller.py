"""The controller finds the draft length that commits most a second, on scripted machines whose times are known."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from forerun.config import ConfigError, GatewayConfig
from gateway.controller import Controller
from gateway.draft_lengths import DraftLengths, LengthTable
from gateway.round import Round

SEED = 20261129
RoundTime = Callable[[int], float]  # draft length -> seconds a round


def a_round(length: int, accepted: int, seconds: float) -> Round:
    return Round(
        index=1,
        draft_token_ids=(),
        committed_token_ids=(0,) * (accepted + 1),
        drafted_count=length,
        accepted_count=accepted,
        epoch=1,
        refuted=accepted < length,
        started_unix_ns=0,
        ended_unix_ns=round(seconds * 1e9),
        step_ns=0,
        wait_ns=0,
        draft_ns=0,
        batch_size=1,
    )


class Machine:
    """Rounds of a pair with a fixed chance that each next candidate holds, and given times; counts what it lost."""

    def __init__(self, chance: float, round_s: RoundTime, running: int = 1, length: int = 6) -> None:
        print(f"seed {SEED}")
        self._random = random.Random(SEED)
        self.chance = chance
        self.round_s = round_s
        self.running = running
        self.controller = Controller(length)
        self.seconds = 0.0
        self.tokens = 0

    @property
    def draft_length(self) -> int:
        return self.controller.draft_length(self.running)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            length = self.draft_length
            accepted = 0
            while accepted < length and self._random.random() < self.chance:
                accepted += 1
            seconds = self.round_s(length) * self._random.uniform(0.9, 1.1)
            self.seconds += seconds
            self.tokens += accepted + 1
            self.controller.record(a_round(length, accepted, seconds), self.running)


def free(length: int) -> float:
    return 0.050 + 0.001 * length


def costly(length: int) -> float:
    return 0.050 + 0.030 * length


def expected_speed(machine: Machine, length: int) -> float:
    tokens = 1 + sum(machine.chance**n for n in range(1, length + 1))
    return tokens / machine.round_s(length)


@pytest.mark.parametrize("running", [1, 4, 16])
def test_cheap_drafts_that_hold_are_kept_long(running: int) -> None:
    machine = Machine(0.8, free, running)
    machine.run(200 * running)
    assert machine.draft_length == 6


@pytest.mark.parametrize("running", [1, 4, 16])
def test_a_junk_drafter_is_turned_off(running: int) -> None:
    machine = Machine(0.01, costly, running)
    machine.run(200 * running)
    assert machine.draft_length == 0


def test_a_length_in_between_is_found() -> None:
    machine = Machine(0.6, lambda length: 0.050 + 0.012 * length)
    machine.run(4000)
    best = max(range(7), key=lambda length: expected_speed(machine, length))
    assert expected_speed(machine, machine.draft_length) > 0.97 * expected_speed(machine, best)


def test_speculation_that_does_not_pay_costs_less_than_two_percent_in_the_long_run() -> None:
    machine = Machine(0.02, costly)
    machine.run(300)
    machine.seconds, machine.tokens = 0.0, 0
    machine.run(20_000)
    assert machine.tokens / machine.seconds > 0.98 * expected_speed(machine, 0)


def test_speculation_comes_back_by_probing_once_it_pays() -> None:
    machine = Machine(0.02, costly)
    machine.run(500)
    assert machine.draft_length == 0
    machine.chance, machine.round_s = 0.9, free
    machine.run(20_000)
    assert machine.draft_length >= 3


def test_each_load_has_a_length_of_its_own() -> None:
    machine = Machine(0.8, free)
    machine.run(300)
    alone = machine.draft_length
    machine.running, machine.round_s = 16, lambda length: 0.100 + 0.100 * length
    machine.run(3000)
    crowded = machine.draft_length
    machine.running, machine.round_s = 1, free
    machine.run(300)
    assert (alone, crowded, machine.draft_length) == (6, 0, 6)


def test_a_load_that_was_only_passed_does_what_its_neighbour_found_out() -> None:
    """Sixteen requests come one by one, and leave one by one: the loads between are too short to learn anything."""
    machine = Machine(0.0, lambda length: 0.1 + 0.1 * length)
    for running in range(1, 16):
        machine.running = running
        machine.run(1)
    machine.running = 16
    machine.run(2000)
    lengths = []
    for running in range(15, 0, -1):
        machine.running = running
        lengths.append(machine.draft_length)
    assert lengths == [0] * 15


def test_rounds_beside_prompts_do_not_count_for_their_time() -> None:
    controller = Controller(4)
    for number in range(2000):
        length, beside_prompt = controller.draft_length(1), number % 3 > 0
        seconds = 2.0 if beside_prompt else 0.050 + 0.001 * length
        controller.record(a_round(length, 3 * length // 4, seconds), 1, beside_prompt)
    assert controller.draft_length(1) == 4


@pytest.mark.parametrize(("drafted_s", "turned_off"), [(0.300, True), (0.050, False)], ids=["dear", "as dear as plain"])
def test_a_draft_that_makes_prompts_dear_is_turned_off(drafted_s: float, turned_off: bool) -> None:
    """Every fourth round has a prompt beside it, which costs 50 ms, or more with a draft. Quiet rounds do not tell."""
    machine = Machine(0.5, lambda length: 0.050 + 0.004 * length, running=8)
    for number in range(6000):
        if number % 4:
            machine.run(1)
            continue
        length = machine.draft_length
        seconds = machine.round_s(length) + (drafted_s if length else 0.050)
        machine.controller.record(a_round(length, length // 2, seconds), 8, beside_prompt=True)
    assert (machine.draft_length == 0) == turned_off


def test_where_every_round_has_a_prompt_beside_it_they_do_count() -> None:
    controller = Controller(4)
    for _ in range(2000):
        length = controller.draft_length(1)
        controller.record(a_round(length, 0, 0.050 + 0.010 * length), 1, beside_prompt=True)
    assert controller.draft_length(1) == 0


def test_a_load_that_is_new_starts_with_what_is_best_at_the_nearest() -> None:
    machine = Machine(0.02, costly, 4)
    machine.run(2000)
    for running in (1, 16, 64):
        machine.running = running
        assert machine.draft_length == 0
        machine.run(10 * running)
        assert machine.draft_length == 0  # one slice tells what a plain round takes; the rest is known from elsewhere


def test_probes_lose_a_hundredth_of_the_time_however_dear_one_is() -> None:
    machine = Machine(0.02, lambda length: 0.050 if length == 0 else 2.0)
    machine.run(1000)
    machine.seconds, machine.tokens = 0.0, 0
    machine.run(40_000)
    assert machine.tokens / machine.seconds > 0.985 * expected_speed(machine, 0)


def test_a_draft_that_has_to_catch_up_is_measured_when_it_has() -> None:
    controller = Controller(4)
    for _ in range(10):  # two rounds settle, those without candidates do not count
        controller.record(a_round(0, 0, 1.0), 1)
    for _ in range(20):
        controller.record(a_round(4, 4, 0.060), 1)
    for _ in range(20):
        controller.record(a_round(0, 0, 0.050), 1)
    assert controller.draft_length(1) == 4


def test_a_draft_that_never_comes_is_measured_all_the_same() -> None:
    controller = Controller(4)
    for _ in range(200):
        controller.record(a_round(0, 0, 0.100 if controller.draft_length(1) else 0.050), 1)
    assert controller.draft_length(1) == 0


def test_a_table_decides_by_load() -> None:
    table = LengthTable.parse("1:4, 4:2,9:0")
    assert [table.length(running) for running in (1, 3, 4, 8, 9, 100)] == [4, 4, 2, 2, 0, 0]
    assert LengthTable.parse("").length(1) is None


@pytest.mark.parametrize("text", ["4", "a:b", "4:2,1:4", "1:99", "1:2:3", "1:-1"])
def test_a_table_that_makes_no_sense_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="draft_length_by_batch"):
        DraftLengths(GatewayConfig(draft_length_by_batch=text))


def test_speculation_stops_above_the_given_number() -> None:
    lengths = DraftLengths(GatewayConfig(disable_above=4, adaptive="off", draft_length=3))
    assert [lengths.now(running) for running in (1, 4, 5)] == [3, 3, 0]


@pytest.mark.parametrize("clients", [4, 8, 16, 32, 64])
def test_between_two_requests_of_a_client_it_is_the_same_load(clients: int) -> None:
    """A session less for a moment once switched speculation on, had every draft catch up, and switched it off again."""
    controller = Controller(6)
    for number in (2, clients - 1, clients, 2 * clients):
        speculates = number == clients - 1
        machine = Machine(0.8 if speculates else 0.01, free if speculates else costly, running=number)
        machine.controller = controller
        machine.run(100 * number)
    assert controller.draft_length(clients - 1) == controller.draft_length(clients)
