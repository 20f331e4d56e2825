"""Ranks token ids by how often they are said: `python -m training.ranking --config training/smollm2-135m.toml`.

For the restricted output head of a draft. A model writes dialogues on our own prompts; what is summed up is not the
tokens that were drawn but the whole distributions that they were drawn from, so that rare tokens are ranked by some
tens of thousands of small chances instead of none or one occurrence. Takes up where it was stopped.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from forerun.runtime.output_head import RANKING_FILE
from forerun.runtime.pull import cache_dir, pull
from training import config, prompts, student
from training.decoder import LockstepDecoder
from training.dialogue import Script, Template, write

TEMPERATURE = 0.9
LENGTH = 224  # tokens of a dialogue, the template's included
ANSWER_LIMIT = 96  # short answers: more dialogues, so more subjects
PRIOR = 0.02  # weight of the order of ids, as a share of what was measured


@dataclass
class Census:
    """How often each token is expected to have been said, over all that was written so far."""

    expected: Tensor  # [V] float64, on the CPU
    tokens: int = 0
    batches: int = 0

    def draw(self, logits: Tensor, temperature: Tensor) -> Tensor:
        """Counts the distributions [batch, V], and draws a token from each."""
        likely = (logits.float() / temperature[:, None]).softmax(-1)
        self.expected += likely.sum(0).double().cpu()
        self.tokens += len(likely)
        reached = likely.cumsum(-1)
        goal = torch.rand(len(likely), 1, device=likely.device) * reached[:, -1:]
        return torch.searchsorted(reached, goal)[:, 0].clamp_max(likely.shape[1] - 1)

    def save(self, path: Path) -> None:
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(file, expected=self.expected.numpy(), tokens=self.tokens, batches=self.batches)
        partial.rename(path)


def load(path: Path, vocabulary_size: int) -> Census:
    """The census as it was saved, or an empty one."""
    if not path.exists():
        return Census(torch.zeros(vocabulary_size, dtype=torch.float64))
    with np.load(path) as saved:
        return Census(torch.from_numpy(saved["expected"]), int(saved["tokens"]), int(saved["batches"]))


def rank(expected: Tensor) -> Tensor:
    """All token ids, the most frequent first; the order of ids decides where next to nothing was measured.

    Byte-pair ids come in the order of their merges, hence roughly as in Zipf's law: id i about 1 / i of the time.
    """
    prior = 1.0 / torch.arange(2, len(expected) + 2, dtype=torch.float64)
    blended = expected / expected.sum().clamp_min(1.0) + PRIOR * prior / prior.sum()
    return blended.argsort(descending=True, stable=True).to(torch.int32)


def script(tokenizer: PreTrainedTokenizerBase, template: Template, batch: int, seed: str) -> Script:
    """Dialogues from the openings that samples have too, but all warm and with short turns."""
    rng = random.Random(seed)
    openings = [prompts.chat(rng) for _ in range(batch)]
    encoded = tokenizer([opening.text for opening in openings], add_special_tokens=False)["input_ids"]
    ends = [[template.end] if opening.complete else [] for opening in openings]
    warm = torch.full((batch,), TEMPERATURE)
    return Script(
        prefix=torch.tensor([template.prefix] * batch),
        openings=[[*text, *end] for text, end in zip(encoded, ends, strict=True)],
        user_temperature=warm,
        answer_temperature=warm,
        user_limit=torch.tensor([rng.randint(6, 40) for _ in openings]),
        answer_limit=torch.full((batch,), ANSWER_LIMIT),
    )


def take(
    writer: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, path: Path, wanted: int, batch: int, bar: Progress
) -> Census:
    """Has the model write until `wanted` tokens are counted; the census is kept in `path` after each batch."""
    census, template = load(path, writer.config.vocab_size), Template(tokenizer)
    decoder = LockstepDecoder(writer, batch, LENGTH)
    task = bar.add_task("writing", total=wanted, completed=min(wanted, census.tokens))
    while census.tokens < wanted:
        seed = f"ranking/{census.batches}"
        torch.manual_seed(random.Random(seed).getrandbits(62))
        began, before = time.process_time(), census.tokens
        write(decoder, script(tokenizer, template, batch, seed), template, census.draw)
        census.batches += 1
        census.save(path)
        spent = time.process_time() - began
        bar.console.print(f"{census.tokens:,} tokens, {(census.tokens - before) / spent:,.0f} a CPU second")
        bar.update(task, completed=min(wanted, census.tokens))
    return census


def _writer(settings: config.Config, folder: Path, draft: bool) -> LlamaForCausalLM:
    """The target, or its finished draft, in bfloat16: the numbers matter little here, and the speed much."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    if draft:
        model = student.load(settings.output, model)
    model.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    return model.requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.ranking", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument(
        "--writer", choices=("target", "draft"), default="target", help="the draft is several times as fast"
    )
    parser.add_argument("--tokens", type=int, default=300_000, help="to be written; default: %(default)s")
    parser.add_argument("--batch", type=int, default=128, help="dialogues side by side; default: %(default)s")
    arguments = parser.parse_args()
    settings = config.load(arguments.config)
    settings.work.mkdir(parents=True, exist_ok=True)
    folder = pull(settings.target, cache_dir(os.environ))
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        census = take(
            _writer(settings, folder, arguments.writer == "draft"),
            AutoTokenizer.from_pretrained(folder),
            settings.work / f"ranking-{arguments.writer}.npz",
            arguments.tokens,
            arguments.batch,
            bar,
        )
    save_file({"token_ids": rank(census.expected)}, settings.output / RANKING_FILE)
    (settings.output / RANKING_FILE).chmod(0o644)


if __name__ == "__main__":
    main()
