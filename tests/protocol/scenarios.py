"""What a simulation is made of, as values that hypothesis draws, shrinks and prints.

Times are virtual milliseconds from the start. Everything random that is not here follows from `seed`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.protocol.network import Weather

FAULT_WINDOW_MS = 600

CALM = Weather()
TAME_FAULTS = (
    "break target stream",
    "break draft stream",
    "restart target",
    "restart draft",
    "hang draft",
    "fail draft step",
    "draft length",
)


@dataclass(frozen=True)
class Fault:
    """Something goes wrong, or changes, at a time. `which` picks the replica or session, modulo how many there are."""

    at_ms: int
    kind: str
    which: int = 0
    for_ms: int = 50


@dataclass(frozen=True)
class SessionPlan:
    """One request and its client."""

    start_ms: int = 0
    gateway: int = 0
    prompt_length: int = 3
    max_tokens: int = 24
    stops: bool = False  # at STOP, too
    ignore_eos: bool = False
    min_tokens: int = 0
    draft_length: int = 4
    ahead: int = 0  # window beyond the draft length
    credit: int = 256  # tokens the target may commit ahead of the client
    read_ms: int = 0  # how long the client takes over each round
    leave_ms: int | None = None  # after so long the client cancels
    deadline_ms: int | None = None  # also the services' time to live


@dataclass(frozen=True)
class Scenario:
    """A whole world."""

    seed: int = 0
    vocabulary_size: int = 8
    rarity: int = 100
    memory: int = 3
    weather: Weather = CALM
    gateways: int = 1
    targets: int = 1
    drafts: tuple[str, ...] = ("right",)
    sessions: tuple[SessionPlan, ...] = (SessionPlan(),)
    faults: tuple[Fault, ...] = ()
    target_ms: tuple[float, float] = (10.0, 10.0)  # a step
    draft_ms: tuple[float, float] = (2.0, 2.0)
    patience: str = "real"  # or none, or endless
    block_size: int = 4
    spare_blocks: int = 300  # of the target, beyond what one session needs
    draft_blocks: int = 400
    max_batch_tokens: int = 64
    context_length: int = 96
    draft_context_length: int = 96
    max_sessions: int = 8
    draft_max_sessions: int = 8
    overlaps: bool = False  # the target begins a step before the last one's end
    reuse: bool = False  # prompts begin alike, and caches make use of it

    @property
    def reliable(self) -> bool:
        """Whether streams are what gRPC promises: complete and in order for each session."""
        return not self.weather.lost and not self.weather.scrambling

    @property
    def sluggish(self) -> bool:
        """Whether a draft may rightly be taken for dead."""
        return not {"slow", "malicious"}.isdisjoint(self.drafts) or any(f.kind == "hang draft" for f in self.faults)

    @property
    def calm_at_ms(self) -> int:
        """From when on nothing goes wrong any more."""
        return max((FAULT_WINDOW_MS, *(fault.at_ms + fault.for_ms for fault in self.faults)))


def weathers(quick: bool = False) -> st.SearchStrategy[Weather]:
    """Good and bad networks."""
    slow = [] if quick else [(0.1, 25.0), (10.0, 60.0)]
    return st.builds(
        Weather,
        delay_ms=st.sampled_from([(1.0, 1.0), (0.1, 3.0), (0.1, 3.0), *slow]),
        overtaking=st.booleans(),
        scrambling=st.sampled_from([False, False, True]),
        lost=st.sampled_from([0.0, 0.0, 0.05, 0.2]),
        repeated=st.sampled_from([0.0, 0.1, 0.4]),
    )


def plans(most_draft_length: int = 6) -> st.SearchStrategy[SessionPlan]:
    """Requests of all kinds."""
    return st.builds(
        SessionPlan,
        start_ms=st.integers(0, 200),
        gateway=st.integers(0, 1),
        prompt_length=st.sampled_from([1, 3, 9, 30]),
        max_tokens=st.sampled_from([40, 24, 60, 90, 90, 90, 12, 2, 1]),
        stops=st.booleans(),
        ignore_eos=st.sampled_from([True, True, False]),
        min_tokens=st.sampled_from([0, 20]),
        draft_length=st.sampled_from([4, 1, 2, 3, most_draft_length, 0]),
        ahead=st.sampled_from([0, 0, 1, 3, 12]),
        credit=st.sampled_from([256, 256, 9, 3, 1]),
        read_ms=st.sampled_from([0, 0, 1, 10, 60]),
        leave_ms=st.sampled_from([None] * 20 + [0, 5, 60, 250, 450]),
        deadline_ms=st.sampled_from([None] * 20 + [1, 20, 120, 400]),
    )


def faults(kinds: tuple[str, ...] = TAME_FAULTS, most: int = 5) -> st.SearchStrategy[tuple[Fault, ...]]:
    """A few faults."""
    one = st.builds(
        Fault,
        at_ms=st.integers(0, FAULT_WINDOW_MS),
        kind=st.sampled_from(kinds),
        which=st.integers(0, 3),
        for_ms=st.sampled_from([1, 20, 150, 500]),
    )
    return st.lists(one, min_size=1, max_size=most).map(tuple) | st.just(())


def scenarios(
    drafts: tuple[str, ...] = ("right", "right", "mixed", "mixed", "fading", "slow", "leaping", "ngram", "junk"),
    patience: tuple[str, ...] = ("real", "real", "none"),
) -> st.SearchStrategy[Scenario]:
    """Worlds of all kinds."""
    return st.builds(
        Scenario,
        seed=st.integers(0, 10_000),
        vocabulary_size=st.sampled_from([3, 8]),
        rarity=st.sampled_from([100, 20]),
        memory=st.sampled_from([1, 3, 100]),
        weather=weathers(),
        gateways=st.sampled_from([1, 1, 2]),
        targets=st.integers(1, 2),
        drafts=st.lists(st.sampled_from(drafts), min_size=1, max_size=2).map(tuple),
        sessions=st.lists(plans(), min_size=1, max_size=4).map(tuple),
        faults=faults(),
        target_ms=st.sampled_from([(10.0, 10.0), (1.0, 30.0)]),
        draft_ms=st.sampled_from([(2.0, 2.0), (0.1, 3.0), (0.1, 3.0), (5.0, 30.0)]),
        patience=st.sampled_from(patience),
        block_size=st.sampled_from([1, 4]),
        spare_blocks=st.sampled_from([300, 8, 0]),
        draft_blocks=st.sampled_from([400, 400, 40]),
        max_batch_tokens=st.sampled_from([64, 16, 5]),
        context_length=st.sampled_from([96, 96, 34]),
        draft_context_length=st.sampled_from([96, 96, 96, 25]),
        max_sessions=st.sampled_from([8, 2]),
        draft_max_sessions=st.sampled_from([8, 8, 8, 1]),
        overlaps=st.booleans(),
        reuse=st.booleans(),
    )


STEADY = SessionPlan(max_tokens=90, ignore_eos=True)
STEADY_RUN_AHEAD = SessionPlan(max_tokens=90, ignore_eos=True, ahead=12)


def passing_storms() -> st.SearchStrategy[Scenario]:
    """Faults of all kinds, but a draft that is always right and quicker than the target; and long sessions."""
    return st.builds(
        Scenario,
        seed=st.integers(0, 10_000),
        weather=weathers(quick=True),
        targets=st.integers(1, 2),
        sessions=st.lists(st.sampled_from([STEADY, STEADY_RUN_AHEAD]), min_size=1, max_size=2).map(tuple),
        faults=faults(tuple(kind for kind in TAME_FAULTS if kind != "draft length")),
        draft_ms=st.sampled_from([(1.0, 1.0), (0.1, 3.0)]),
        patience=st.sampled_from(["real", "endless"]),
        overlaps=st.booleans(),
        reuse=st.booleans(),
    )
