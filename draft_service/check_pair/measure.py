"""Runs a pair: the target writes, the draft guesses after each of its tokens, and the steps of both are timed.

Since every committed token is the target's, one pass of the draft over the finished text tells what it would have
proposed in any round. Both draw as the services do, with the noise of the same seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import torch

from draft_service.check_pair import rounds
from draft_service.check_pair.measurement import BOTH, MODEL, NGRAM, Measurement
from draft_service.check_pair.pair import Model, Pair
from draft_service.check_pair.rounds import LONGEST, Guess
from draft_service.drafters.drafter import Want
from draft_service.drafters.draws import Draws
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NgramDrafter
from forerun.config import DraftConfig
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.model_runner import ForwardSlice
from forerun.runtime.sampling import DrawRequest, draw
from forerun.runtime.sequence import Sequence as TokenSequence
from forerun.sampling_params import SamplingParams

STEP_SIZES = (1, 2, 3, 5, 7, 9)  # tokens of a target step: one more than candidates
WARM_UP, REPEATS = 2, 9

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


@dataclass(frozen=True, slots=True)
class Writing:
    """A prompt, what the target said after it, and how it was drawn."""

    params: SamplingParams
    prompt: tuple[int, ...]
    output: tuple[int, ...]


def measure(
    pair: Pair, config: DraftConfig, draft_length: int, tokens: int, temperature: float, report: Report
) -> Measurement:
    """Acceptance at every draft length, and the cost of steps. `tokens`: at most, after each prompt."""
    params = [SamplingParams(temperature, seed=seed, max_tokens=tokens) for seed in range(len(pair.prompts))]
    writings = write(pair.target, pair.prompts, params, report)
    both_least = max(config.ngram_first_min, config.ngram_max)
    tracks = {NGRAM: [lookup(one, NgramDrafter(config.ngram_min, config.ngram_max)) for one in writings]}
    if pair.draft is not None:
        tracks[MODEL] = guesses(pair.draft, writings, report)
        first = [lookup(one, NgramDrafter(config.ngram_first_min, both_least)) for one in writings]
        tracks[BOTH] = [rounds.first_of(found, asked) for found, asked in zip(first, tracks[MODEL], strict=True)]
    times = step_times(pair, writings[0], report)
    medians = {name: median(found) for name, found in times.items()}
    draft_ms = medians.pop(MODEL, None)
    verify_ms = {int(size): ms for size, ms in medians.items()}
    lengths = range(1, LONGEST + 1)
    tallies = {name: {length: rounds.play(found, length) for length in lengths} for name, found in tracks.items()}
    return Measurement(draft_length, tallies, verify_ms, draft_ms, max(map(unsteadiness, times.values())))


def write(
    target: Model, prompts: Sequence[tuple[int, ...]], params: Sequence[SamplingParams], report: Report
) -> list[Writing]:
    """The target's own outputs, all side by side."""
    torch.set_num_threads(target.threads)
    cache = KvCache(target.runner.block_count, target.runner.block_size)
    sequences = [TokenSequence(prompt) for prompt in prompts]
    most = params[0].max_tokens
    running = list(range(len(prompts)))
    for done in range(most):
        report("the target writes", done, most)
        # Prompts one by one, since together they would need more memory for logits than any later step.
        for part in [[i] for i in running] if done == 0 else [running]:
            _step(target, cache, [sequences[i] for i in part], [prompts[i] for i in part], [params[i] for i in part])
        running = [i for i in running if sequences[i].token_ids[-1] not in target.end_token_ids]
        if not running:
            break
    report("the target writes", most, most)
    return [
        Writing(how, prompt, tuple(sequence.token_ids[len(prompt) :]))
        for how, prompt, sequence in zip(params, prompts, sequences, strict=True)
    ]


def _step(
    target: Model,
    cache: KvCache,
    sequences: Sequence[TokenSequence],
    prompts: Sequence[tuple[int, ...]],
    params: Sequence[SamplingParams],
) -> None:
    """Computes what is pending and adds a token to each sequence."""
    slices, requests = [], []
    for sequence, prompt, how in zip(sequences, prompts, params, strict=True):
        assert cache.reserve(sequence, len(sequence)), "the cache was sized for all outputs"
        new = tuple(sequence.token_ids[sequence.computed_length :])
        slices.append(ForwardSlice(new, sequence.computed_length, tuple(sequence.block_table), 1))
        requests.append(
            DrawRequest(how, tuple(sequence.token_ids), len(prompt), len(sequence), 1, target.end_token_ids)
        )
    for sequence, (drawn,) in zip(sequences, draw(target.runner.forward(slices), requests), strict=True):
        sequence.mark_computed(len(sequence))
        sequence.append([drawn.token_id])


def guesses(draft: Model, writings: Sequence[Writing], report: Report) -> list[list[Guess]]:
    """The draft's track of each output, from one forward over it."""
    torch.set_num_threads(draft.threads)
    tracks = []
    for done, writing in enumerate(writings):
        report("the draft guesses", done, len(writings))
        token_ids, count = writing.prompt + writing.output, len(writing.output)
        blocks = tuple(range(-(-len(token_ids) // draft.runner.block_size)))
        # [count, V]
        logits = draft.runner.forward([ForwardSlice(token_ids[:-1], 0, blocks, count)])
        whole = logits if draft.head is None else draft.head.spread(logits)
        start = len(writing.prompt)
        request = DrawRequest(writing.params, token_ids, start, start, count, draft.end_token_ids)
        drawn = [one.token_id for one in draw(whole, [request])[0]]
        tracks.append(rounds.from_flags([a == b for a, b in zip(drawn, writing.output, strict=True)]))
    report("the draft guesses", len(writings), len(writings))
    return tracks


def lookup(writing: Writing, drafter: NgramDrafter) -> list[Guess]:
    """The track of an n-gram lookup."""
    token_ids, start, found = writing.prompt + writing.output, len(writing.prompt), []
    for at in range(start, len(token_ids)):
        (proposal,) = drafter.execute([(token_ids[:at], LONGEST)])
        right = rounds.matching(proposal.token_ids, token_ids[at:])
        found.append(Guess(len(proposal.token_ids), right, False))
    return found


def unsteadiness(times: Sequence[float]) -> float:
    """The upper quartile over the lower one."""
    low, _, high = quantiles(times, n=4)
    return high / low


def step_times(pair: Pair, writing: Writing, report: Report) -> dict[str, list[float]]:
    """Milliseconds of target steps, by their tokens, and of draft steps; in turns: a busy spell hits all alike."""
    steps = {str(size): _verify_step(pair.target, writing, size) for size in STEP_SIZES}
    threads = dict.fromkeys(steps, pair.target.threads)
    if pair.draft is not None:
        steps[MODEL], threads[MODEL] = _draft_step(pair.draft, writing), pair.draft.threads
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(WARM_UP + REPEATS):
        report("timing steps", turn, WARM_UP + REPEATS)
        for name, step in steps.items():
            torch.set_num_threads(threads[name])
            began = time.perf_counter()
            step()  # the drawn tokens come to the host, so a GPU has finished too
            times[name].append(1000 * (time.perf_counter() - began))
    report("timing steps", 1, 1)
    return {name: found[WARM_UP:] for name, found in times.items()}


def _verify_step(target: Model, writing: Writing, size: int) -> Callable[[], object]:
    """A forward over the last `size` tokens and their draws, as the target service does it."""
    token_ids = writing.prompt + writing.output
    start = len(token_ids) - size
    blocks = tuple(range(-(-len(token_ids) // target.runner.block_size)))
    target.runner.forward([ForwardSlice(token_ids, 0, blocks, 0)])
    part = ForwardSlice(token_ids[start:], start, blocks, size)
    request = DrawRequest(writing.params, token_ids, len(writing.prompt), start + 1, size, target.end_token_ids)
    return lambda: draw(target.runner.forward([part]), [request])


def _draft_step(draft: Model, writing: Writing) -> Callable[[], object]:
    """One step of the drafter that the draft service has."""
    *before, last = writing.prompt + writing.output
    cache = KvCache(draft.runner.block_count, draft.runner.block_size)
    drafter = ModelDrafter(Draws(draft.runner, draft.head), cache, draft.end_token_ids, max_batch_tokens=len(before))
    want = Want(TokenSequence(before), writing.params, len(writing.prompt), 1)
    batch, _ = drafter.plan([want])
    drafter.settle(batch, drafter.execute(batch))
    want.sequence.append([last])
    batch, _ = drafter.plan([want])
    return lambda: drafter.execute(batch)
