"""The first stage: has the target write the training data, in shards that are kept and not written twice.

Three kinds of shard: `passage` (long texts on request), `chat`, and `context` / `long`, whose prompts hold passages of
the first kind. A shard is tokens and kinds [sequences, length]; `dialogue` says what the kinds mean.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from training import prompts
from training.config import SampleConfig
from training.decoder import LockstepDecoder
from training.dialogue import ANSWER, Draw, Script, Template, draw, write

_ANSWER_TEMPERATURES = ((0.0, 55), (0.3, 10), (0.7, 15), (0.9, 12), (1.0, 8))
_NO_LIMIT = 1 << 20
_MOST_CHARACTERS = 8  # a token of prose never has more on average


@dataclass(frozen=True)
class _Job:
    """One shard to be: `kind` decides the prompts, the rest the shape."""

    kind: str
    index: int
    batch: int
    length: int

    def path(self, folder: Path) -> Path:
        return folder / f"{self.kind}-{self.index:03d}.npz"


def sample(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, config: SampleConfig, folder: Path, progress: Progress
) -> None:
    """Writes the shards that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = _Writer(model, tokenizer, config, folder)
    jobs = _jobs(config)
    missing = [job for job in jobs if not job.path(folder).exists()]
    task = progress.add_task("sampling", total=len(jobs), completed=len(jobs) - len(missing))
    for job in missing:
        began = time.monotonic()
        tokens, kinds = writer.write(job)
        _save(job.path(folder), tokens, kinds)
        rate = tokens.numel() / (time.monotonic() - began)
        answers = (kinds == ANSWER).float().mean().item()
        progress.console.print(f"{job.path(folder).stem}: {rate:,.0f} tokens/s, {answers:.0%} answers")
        progress.advance(task)


def _jobs(config: SampleConfig) -> list[_Job]:
    shapes = (
        ("passage", config.passage_batches, config.batch // 2, config.long_length),
        ("long", config.long_batches, config.batch // 2, config.long_length),
        ("context", config.context_batches, config.batch, config.length),
        ("chat", config.chat_batches, config.batch, config.length),
    )
    return [_Job(kind, index, batch, length) for kind, count, batch, length in shapes for index in range(count)]


def load(path: Path) -> tuple[Tensor, Tensor]:
    """Tokens and kinds of a shard."""
    with np.load(path) as shard:
        return torch.from_numpy(shard["tokens"].astype(np.int32)), torch.from_numpy(shard["kinds"])


def _save(path: Path, tokens: Tensor, kinds: Tensor) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, tokens=tokens.cpu().numpy().astype(np.uint32), kinds=kinds.cpu().numpy().astype(np.uint8))
    partial.rename(path)


class _Writer:
    """Turns jobs into dialogues; keeps the decoder of the last shape, since its cache and graphs are dear."""

    def __init__(
        self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, config: SampleConfig, folder: Path
    ) -> None:
        self._model, self._tokenizer, self._config, self._folder = model, tokenizer, config, folder
        self._template = Template(tokenizer)
        self._device = model.device
        self._decoder: LockstepDecoder | None = None
        self._shape = (0, 0)
        self._passages: list[str] = []
        self._draw: Draw = torch.compile(draw) if self._device.type == "cuda" else draw

    def write(self, job: _Job) -> tuple[Tensor, Tensor]:
        seed = f"{self._config.seed}/{job.kind}/{job.index}"
        rng = random.Random(seed)
        torch.manual_seed(rng.getrandbits(62))
        if self._shape != (job.batch, job.length):
            self._decoder = None  # frees the old cache before the new one is made
            self._decoder, self._shape = LockstepDecoder(self._model, job.batch, job.length), (job.batch, job.length)
        assert self._decoder is not None
        return write(self._decoder, self._script(job, rng), self._template, self._draw)

    def _script(self, job: _Job, rng: random.Random) -> Script:
        if job.kind in ("context", "long"):
            prefixes, openings = self._with_passages(job, rng)
        else:
            make = prompts.passage if job.kind == "passage" else prompts.chat
            openings = self._openings([make(rng) for _ in range(job.batch)])
            prefixes = [self._template.prefix] * job.batch
        warm, weights = zip(*_ANSWER_TEMPERATURES, strict=True)
        answer = rng.choices(warm, weights, k=job.batch)
        if job.kind == "passage":
            answer = [rng.uniform(0.7, 1.0) for _ in openings]
        return Script(
            prefix=torch.tensor(prefixes, device=self._device),
            openings=openings,
            user_temperature=self._row([rng.uniform(0.6, 1.0) for _ in openings]),
            answer_temperature=self._row(answer),
            user_limit=self._row([rng.randint(6, 90) if job.kind == "chat" else rng.randint(4, 16) for _ in openings]),
            answer_limit=self._row([_NO_LIMIT if job.kind == "passage" else 224 for _ in openings]),
        )

    def _row(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=self._device)

    def _openings(self, openings: Sequence[prompts.Opening]) -> list[list[int]]:
        texts = self._encode([opening.text for opening in openings])
        ends = [[self._template.end] if opening.complete else [] for opening in openings]
        return [text + end for text, end in zip(texts, ends, strict=True)]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return list(self._tokenizer(texts, add_special_tokens=False)["input_ids"])

    def _with_passages(self, job: _Job, rng: random.Random) -> tuple[list[list[int]], list[list[int]]]:
        """Prefixes of one length, each with as much passage as fits, and what follows them."""
        size = job.length - self._config.answer_room - len(self._template.prefix)
        if not self._passages:
            self._passages = _passages(self._folder, self._template.end, self._tokenizer)
        parts = [prompts.about_passage(rng) for _ in range(job.batch)]
        heads = self._encode([before + self._passage(size, rng) for before, _ in parts])
        return [self._template.prefix + head[:size] for head in heads], self._openings([after for _, after in parts])

    def _passage(self, tokens: int, rng: random.Random) -> str:
        """At least so many tokens of text; some contexts are one text cut short, some several."""
        passage = ""
        while len(passage) < tokens * _MOST_CHARACTERS:
            passage += rng.choice(self._passages)[: rng.choice((600, 1200, 1 << 20))] + "\n"
        return passage


def _passages(folder: Path, end: int, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The answers of all passage shards."""
    found: list[str] = []
    for path in sorted(folder.glob("passage-*.npz")):
        tokens, kinds = load(path)
        answers = [row[(kind == ANSWER) & (row != end)] for row, kind in zip(tokens, kinds, strict=True)]
        found += tokenizer.batch_decode([answer.tolist() for answer in answers if len(answer) > 40])
    if not found:
        raise ValueError("there are no passages to build contexts from; set sample.passage_batches to 1 or more")
    return found
