"""From what was measured to the figures people read: one `Cell` for each variant at each load.

Speed is compared by seconds per output token, the request's whole latency over its tokens: at a fixed number of
requests at once it is throughput turned over, and at a fixed arrival rate it still tells the variants apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from forerun.bench.load import Load
from forerun.bench.records import Gpu, Pass, Request, Run
from forerun.bench.stats import Estimate, Spread, ratio_of_sums, spread
from forerun.bench.variants import OFF


@dataclass(frozen=True, slots=True)
class Rounds:
    """What speculation did, over many requests. Times are means a round, in milliseconds."""

    rounds: int
    drafted: int
    accepted: int
    committed: int
    by_position: tuple[tuple[int, int], ...]  # accepted, verified
    round_ms: float
    step_ms: float
    wait_ms: float
    draft_ms: float

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted candidates."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_length(self) -> float:
        """Committed tokens a round."""
        return self.committed / self.rounds if self.rounds else 0.0

    @property
    def with_candidates(self) -> float:
        """The share of rounds that had candidates to verify; the others were plain."""
        return self.by_position[0][1] / self.rounds if self.by_position and self.rounds else 0.0

    @property
    def other_ms(self) -> float:
        """What is neither step nor wait: hops, queues, scheduling."""
        return max(0.0, self.round_ms - self.step_ms - self.wait_ms)

    @property
    def rates(self) -> list[float]:
        """Acceptance by position, of the candidates verified there."""
        return [accepted / verified for accepted, verified in self.by_position if verified]


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant at one load."""

    variant: str
    load: Load
    requests: int
    errors: int
    tokens: int
    throughput: float  # output tokens a second
    throughput_range: tuple[float, float]  # over the passes
    in_flight: float  # requests at once, on average
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    gap: Spread | None
    latency: Spread | None
    rounds: Rounds
    latencies: tuple[float, ...]
    speedup: Estimate | None  # over `off`, measured beside it
    identical: int = 0
    compared: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    pss_bytes: dict[str, int] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """All cells, in the order of the variants, and what belongs to no single one."""

    variants: tuple[str, ...]
    loads: tuple[Load, ...]
    cells: dict[tuple[str, Load], Cell]
    overall: dict[str, Rounds]  # variant, over all loads
    by_category: dict[tuple[str, str], Rounds]  # variant and category
    errors: dict[str, int]  # how often each message came

    def at(self, load: Load) -> list[Cell]:
        """The cells of one load."""
        return [self.cells[name, load] for name in self.variants if (name, load) in self.cells]

    def of(self, variant: str) -> list[Cell]:
        """The cells of one variant."""
        return [self.cells[variant, load] for load in self.loads if (variant, load) in self.cells]

    @property
    def speculating(self) -> tuple[str, ...]:
        return tuple(name for name in self.variants if name != OFF)

    @property
    def categories(self) -> list[str]:
        return list(dict.fromkeys(category for _, category in self.by_category))


def summarise(run: Run) -> Summary:
    """Adds up a run."""
    groups: dict[tuple[str, Load], list[Pass]] = defaultdict(list)
    for done in run.passes:
        groups[done.variant, done.load].append(done)
    identical = _compare_outputs(run.passes)
    measured = {variant for variant, _ in groups}
    return Summary(
        variants=tuple(name for name in run.variants if name in measured),
        loads=tuple(sorted({load for _, load in groups})),
        cells={key: _cell(passes, run.passes, identical[key]) for key, passes in groups.items()},
        overall={name: add_rounds(_answered(run.passes, name)) for name in sorted(measured)},
        by_category=_by_category(run.passes),
        errors=_errors(run.passes),
    )


def add_rounds(requests: Iterable[Request]) -> Rounds:
    """What speculation did in all of them."""
    tallies = [request.speculation for request in requests]
    rounds = sum(tally.rounds for tally in tallies)
    longest = max((len(tally.drafted_per_position) for tally in tallies), default=0)
    by_position = [
        (
            sum(tally.accepted_per_position[place] for tally in tallies if place < len(tally.accepted_per_position)),
            sum(tally.drafted_per_position[place] for tally in tallies if place < len(tally.drafted_per_position)),
        )
        for place in range(longest)
    ]
    mean = {
        name: sum(getattr(tally, name) for tally in tallies) / rounds if rounds else 0.0
        for name in ("round_ms", "step_ms", "wait_ms", "draft_ms")
    }
    return Rounds(
        rounds=rounds,
        drafted=sum(tally.drafted for tally in tallies),
        accepted=sum(tally.accepted for tally in tallies),
        committed=sum(tally.committed for tally in tallies),
        by_position=tuple(by_position),
        **mean,
    )


def _cell(passes: Sequence[Pass], all_passes: Sequence[Pass], identical: tuple[int, int]) -> Cell:
    every = [request for done in passes for request in done.requests]
    good = [request for request in every if not request.error]
    wall_s = sum(done.wall_s for done in passes) or 1.0
    paces = [_tokens(done.requests) / done.wall_s for done in passes if done.wall_s] or [0.0]
    return Cell(
        variant=passes[0].variant,
        load=passes[0].load,
        requests=len(good),
        errors=len(every) - len(good),
        tokens=_tokens(good),
        throughput=_tokens(good) / wall_s,
        throughput_range=(min(paces), max(paces)),
        in_flight=sum(request.latency_s for request in every) / wall_s,
        ttft=spread([request.ttft_s for request in good if request.ttft_s is not None]),
        tpot=spread([request.tpot_s for request in good if request.tpot_s is not None]),
        itl=spread([value for request in good for value in request.itl_s]),
        gap=spread([value for request in good for value in request.gaps_s]),
        latency=spread([request.latency_s for request in good]),
        rounds=add_rounds(good),
        latencies=tuple(request.latency_s for request in good),
        speedup=_speedup(passes, all_passes),
        identical=identical[0],
        compared=identical[1],
        counters=_total(done.counters for done in passes),
        pss_bytes=max((done.pss_bytes for done in passes), key=lambda found: sum(found.values())),
        gpus=tuple(passes[-1].gpus),
    )


def _tokens(requests: Iterable[Request]) -> int:
    return sum(request.tokens for request in requests if not request.error)


def _total(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for counted in counters:
        for name, value in counted.items():
            total[name] += value
    return dict(total)


def _speedup(passes: Sequence[Pass], all_passes: Sequence[Pass]) -> Estimate | None:
    """How many times as fast as `off` on the same services: paired by prompt. None for `off` itself, or without it."""
    if passes[0].variant == OFF:
        return None
    drafters = {done.drafter for done in passes}
    plain = [
        done for done in all_passes if done.variant == OFF and done.load == passes[0].load and done.drafter in drafters
    ]
    ours, theirs = _seconds_a_token(passes), _seconds_a_token(plain)
    return ratio_of_sums([(theirs[key], ours[key]) for key in ours if key in theirs])


def _seconds_a_token(passes: Sequence[Pass]) -> dict[tuple[int, int], float]:
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    tokens: dict[tuple[int, int], int] = defaultdict(int)
    for request in (request for done in passes for request in done.requests):
        if not request.error and request.tokens:
            seconds[request.prompt, request.turn] += request.latency_s
            tokens[request.prompt, request.turn] += request.tokens
    return {key: seconds[key] / tokens[key] for key in seconds}


def _compare_outputs(passes: Sequence[Pass]) -> dict[tuple[str, Load], tuple[int, int]]:
    """How many outputs equal the first plain output of the same prompt, and how many could be compared."""
    ordered = sorted(passes, key=lambda done: done.variant != OFF)  # stable: plain ones first, in order of time
    first: dict[tuple[int, int], Request] = {}
    counts: dict[tuple[str, Load], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for done in ordered:
        same, compared = counts[done.variant, done.load]
        for request in done.requests:
            reference = first.setdefault((request.prompt, request.turn), request) if not request.error else request
            if reference is not request:
                compared += 1
                same += reference.token_ids == request.token_ids
        counts[done.variant, done.load] = same, compared
    return counts


def _by_category(passes: Sequence[Pass]) -> dict[tuple[str, str], Rounds]:
    groups: dict[tuple[str, str], list[Request]] = defaultdict(list)
    for done in passes:
        for request in done.requests:
            if not request.error and request.category:
                groups[done.variant, request.category].append(request)
    return {key: add_rounds(requests) for key, requests in groups.items()}


def _answered(passes: Iterable[Pass], variant: str) -> list[Request]:
    return [request for done in passes if done.variant == variant for request in done.requests if not request.error]


def _errors(passes: Sequence[Pass]) -> dict[str, int]:
    messages = [request.error for done in passes for request in done.requests if request.error]
    return {message: messages.count(message) for message in dict.fromkeys(messages)}
