"""What a restricted output head costs and saves: `python -m training.coverage --config ... --prompts FILE`.

For each size, by the order of ids and by the checkpoint's ranking: how many of the target's own tokens on held-out
prompts the head knows, and the mean accepted length that is left; and how long a step of the draft takes. A token is
the restricted head's pick if it has the highest logit among those that the head knows, so one pass serves all sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

from forerun.runtime.model import load_model
from forerun.runtime.model_runner import ForwardSlice, ModelRunner
from forerun.runtime.output_head import RANKING_FILE, head_for, ranking
from forerun.runtime.pull import cache_dir, pull
from forerun.runtime.sampling import DrawRequest, draw
from forerun.sampling_params import SamplingParams
from training import config, student
from training.evaluate import Batch, Tally, accepted_runs, answer, hidden_states, read_prompts

SIZES = (4096, 8192, 12288, 16384, 24576, 49152)
WARM_UP, REPEATS, CONTEXT = 3, 25, 128


def place_of(ranked: Sequence[int], always: Sequence[int]) -> Tensor:
    """[V]: each token's place in the ranking; those in `always` come first, as every head knows them."""
    place = torch.full((len(ranked),), -1)
    place[torch.tensor(ranked)] = torch.arange(len(ranked))
    place[torch.tensor(always)] = 0
    return place


def known_and_kept(
    draft: LlamaForCausalLM, batches: Sequence[Batch], place: Tensor, draft_length: int
) -> dict[int, tuple[float, float]]:
    """By size: the share of the target's tokens that the head knows, and the mean accepted length with it."""
    known, tallies = dict.fromkeys(SIZES, 0), {size: Tally() for size in SIZES}
    total = 0
    for batch in batches:
        hidden = hidden_states(draft, batch)
        for row, said in enumerate(batch.answers):
            logits = draft.lm_head(hidden[row, : len(said)]).float()  # [T, V]
            truth = torch.tensor(said)
            total += len(said)
            for size in SIZES:
                picks = logits.masked_fill(place >= size, float("-inf")).argmax(-1)
                tallies[size].add(len(said), accepted_runs((picks == truth).tolist(), draft_length), draft_length)
                known[size] += int((place[truth] < size).sum())
    return {size: (known[size] / total, tallies[size].committed / tallies[size].rounds) for size in SIZES}


def step_ms(folder: Path, target: Path, threads: int) -> dict[int, dict[str, float]]:
    """By size: median and least of a step for one token at temperature 0 and at 0.8, as the draft service makes it."""
    torch.set_num_threads(threads)
    steps = {
        (size, temperature): _step(folder, target, size, temperature) for size in SIZES for temperature in (0.0, 0.8)
    }
    times: dict[tuple[int, float], list[float]] = {key: [] for key in steps}
    for turn in range(WARM_UP + REPEATS):
        for key, step in steps.items():  # in turns: a busy spell hits all sizes
            began = time.perf_counter()
            step()
            if turn >= WARM_UP:
                times[key].append(1000 * (time.perf_counter() - began))
    return {
        size: {
            f"{what} at {temperature:g}": round(of(times[size, temperature]), 2)
            for temperature in (0.0, 0.8)
            for what, of in (("median", median), ("least", min))
        }
        for size in SIZES
    }


def _step(folder: Path, target: Path, size: int, temperature: float) -> Callable[[], object]:
    runner = ModelRunner(load_model(folder, embeddings_from=target), block_count=CONTEXT // 16 + 1)
    model = runner.model
    head = head_for(model, size, model.vocabulary_size)
    token_ids, blocks = tuple(range(1000, 1000 + CONTEXT)), tuple(range(runner.block_count))
    runner.forward([ForwardSlice(token_ids, 0, blocks, 0)])
    part = ForwardSlice(token_ids[-1:], CONTEXT - 1, blocks, 1)
    request = DrawRequest(SamplingParams(temperature), token_ids, 1, CONTEXT, 1)

    def step() -> object:
        logits = runner.forward([part])
        return draw(logits if head is None else head.spread(logits), [request])

    return step


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.coverage", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, help="JSON lines with `turns` or `prompt`, held out; none: times only")
    parser.add_argument("--limit", type=int, default=24, help="prompts, spread over the file; default: %(default)s")
    parser.add_argument("--tokens", type=int, default=64, help="after each; default: %(default)s")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="to time steps with; default: 1 2")
    arguments = parser.parse_args()
    settings = config.load(arguments.config)
    folder = pull(settings.target, cache_dir(os.environ))
    found: dict[str, object] = {}
    if arguments.prompts is not None:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        target: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        wanted = config.EvaluateConfig(batch=8, new_tokens=arguments.tokens)
        batches = answer(target, read_prompts(arguments.prompts, tokenizer, arguments.limit), wanted, 0.0)
        draft, ends = student.load(settings.output, target), [int(target.config.eos_token_id)]  # type: ignore[arg-type]
        orders = {"by id": list(range(len(tokenizer)))}
        if (settings.output / RANKING_FILE).is_file():
            orders["ranked"] = ranking(settings.output, len(tokenizer))
        for name, order in orders.items():
            place = place_of(order, ends)
            found[name] = known_and_kept(draft, batches, place, wanted.draft_length)
    for threads in arguments.threads:
        found[f"step ms, {threads} threads"] = step_ms(settings.output, folder, threads)
    found["load"] = os.getloadavg()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
