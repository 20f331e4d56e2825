"""The third stage: mean accepted length of a draft on held-out prompts, exactly, in one forward pass of the draft.

Every committed token is the target's own, so what the draft is conditioned on is known beforehand: it is right at a
position if its pick after the target's text equals the target's. Rounds follow from those flags alone. Sampling uses
the same Gumbel noise for both models, as the services do.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerBase

from training.config import EvaluateConfig
from training.ngram import NgramDrafter

# The argument was renamed between the versions of transformers that we support.
_CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


@dataclass(frozen=True)
class Prompt:
    """A conversation's first turn, with the chat template around it."""

    category: str
    ids: list[int]


@dataclass(frozen=True)
class Batch:
    """Prompts of similar length, left-padded, with the target's answers behind them."""

    prompts: list[Prompt]
    tokens: Tensor  # [batch, width + new_tokens]
    mask: Tensor  # the same shape; 0 on padding
    width: int
    answers: list[list[int]]  # up to and including the end token


@dataclass
class Tally:
    """Counts over rounds; ratios are derived."""

    committed: int = 0
    rounds: int = 0
    accepted_at: tuple[int, ...] = ()

    def add(self, committed: int, accepted: Sequence[int], draft_length: int) -> None:
        reached = [sum(run > position for run in accepted) for position in range(draft_length)]
        before = self.accepted_at or (0,) * draft_length
        self.accepted_at = tuple(a + b for a, b in zip(before, reached, strict=True))
        self.committed += committed
        self.rounds += len(accepted)

    def summary(self) -> dict[str, object]:
        rates = [round(count / max(1, self.rounds), 4) for count in self.accepted_at]
        return {
            "mean_accepted_length": round(self.committed / max(1, self.rounds), 4),
            "acceptance_by_position": rates,
            "acceptance_rate": round(sum(rates) / max(1, len(rates)), 4),
            "rounds": self.rounds,
        }


def read_prompts(path: Path, tokenizer: PreTrainedTokenizerBase, limit: int) -> list[Prompt]:
    """Every line, or `limit` of them spread evenly over the file."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    chosen = [lines[index * len(lines) // limit] for index in range(limit)] if limit < len(lines) else lines
    found = []
    for line in chosen:
        message = {"role": "user", "content": line["turns"][0] if "turns" in line else line["prompt"]}
        text = str(tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True))
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        found.append(Prompt(str(line.get("category", "all")), ids))
    return found


def _noise(like: Tensor, temperature: float, position: int) -> Tensor:
    """The Gumbel noise of a position, the same whoever asks; none when greedy."""
    if temperature == 0:
        return torch.zeros((), device=like.device)
    generator = torch.Generator(like.device).manual_seed(1_000_003 + position)
    uniform = torch.rand(like.shape, generator=generator, device=like.device).clamp_min(1e-20)
    return -torch.log(-torch.log(uniform))


def _pick(logits: Tensor, temperature: float, position: int) -> Tensor:
    return (logits / (temperature or 1.0) + _noise(logits, temperature, position)).argmax(-1)


@torch.inference_mode()
def answer(target: LlamaForCausalLM, prompts: list[Prompt], config: EvaluateConfig, temperature: float) -> list[Batch]:
    """The target's own answers, in batches."""
    ordered = sorted(prompts, key=lambda prompt: len(prompt.ids))
    starts = range(0, len(ordered), config.batch)
    return [_answer(target, ordered[start : start + config.batch], config.new_tokens, temperature) for start in starts]


def _answer(target: LlamaForCausalLM, prompts: list[Prompt], new_tokens: int, temperature: float) -> Batch:
    end = target.config.eos_token_id
    assert isinstance(end, int)
    width = max(len(prompt.ids) for prompt in prompts)
    tokens = torch.full((len(prompts), width + new_tokens), end, device=target.device)
    mask = torch.ones_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt.ids) : width] = torch.tensor(prompt.ids, device=target.device)
        mask[row, : width - len(prompt.ids)] = 0
    positions = _positions(mask)
    cache = DynamicCache()
    start = 0
    for stop in range(width, width + new_tokens):
        logits = target(
            tokens[:, start:stop],
            attention_mask=mask[:, :stop],
            position_ids=positions[:, start:stop],
            logits_to_keep=1,
            **{_CACHE: cache},
        ).logits[:, -1]
        tokens[:, stop] = _pick(logits.float(), temperature, stop - width)
        start = stop
    answers = [_until(row, end) for row in tokens[:, width:].tolist()]
    return Batch(prompts, tokens, mask, width, answers)


def _positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(-1) - 1).clamp_min(0)


def _until(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


@torch.inference_mode()
def hidden_states(draft: LlamaForCausalLM, batch: Batch) -> Tensor:
    """What the draft's head sees when it proposes each answer token [batch, new_tokens, hidden]."""
    states: Tensor = draft.model(
        batch.tokens, attention_mask=batch.mask, position_ids=_positions(batch.mask), use_cache=False
    ).last_hidden_state
    return states[:, batch.width - 1 : -1]


@torch.inference_mode()
def draft_flags(draft: LlamaForCausalLM, batch: Batch, temperature: float) -> list[list[bool]]:
    """For every answer token, whether the draft would have proposed it."""
    hidden = hidden_states(draft, batch)
    count = hidden.shape[1]
    picks = [_pick(draft.lm_head(hidden[:, index]).float(), temperature, index) for index in range(count)]
    right = torch.stack(picks, dim=1) == batch.tokens[:, batch.width :]
    return [row[: len(answer)] for row, answer in zip(right.tolist(), batch.answers, strict=True)]


def accepted_runs(flags: Sequence[bool], draft_length: int) -> list[int]:
    """How many candidates each round accepts."""
    runs, position = [], 0
    while position < len(flags):
        runs.append(_run(flags, position, draft_length))
        position += runs[-1] + 1
    return runs


def _run(flags: Sequence[bool], start: int, most: int) -> int:
    run = 0
    while run < most and start + run < len(flags) and flags[start + run]:
        run += 1
    return run


def runs_with_ngrams(prompt: list[int], answer: list[int], flags: Sequence[bool], draft_length: int) -> list[int]:
    """The same when a repeated n-gram, where there is one, proposes in the draft's place."""
    drafter = NgramDrafter(prompt)
    runs, position = [], 0
    while position < len(answer):
        proposed = drafter.propose(draft_length)
        if proposed:
            ahead = answer[position : position + len(proposed)]
            run = _run([a == b for a, b in zip(proposed, ahead, strict=False)], 0, draft_length)
        else:
            run = _run(flags, position, draft_length)
        runs.append(run)
        drafter.extend(answer[position : position + run + 1])
        position += run + 1
    return runs


def measure(
    draft: LlamaForCausalLM, batches: Sequence[Batch], config: EvaluateConfig, temperature: float
) -> dict[str, object]:
    """The model alone, the model with n-grams, and the model by category of prompt."""
    alone, combined, categories = Tally(), Tally(), dict[str, Tally]()
    for prompt, answer, flags in _rows(draft, batches, temperature):
        runs = accepted_runs(flags, config.draft_length)
        alone.add(len(answer), runs, config.draft_length)
        categories.setdefault(prompt.category, Tally()).add(len(answer), runs, config.draft_length)
        both = runs_with_ngrams(prompt.ids, answer, flags, config.draft_length)
        combined.add(len(answer), both, config.draft_length)
    return {
        "settings": {**asdict(config), "prompts": sum(len(batch.prompts) for batch in batches)},
        "temperature": temperature,
        "model": alone.summary(),
        "ngram+model": combined.summary(),
        "categories": {name: tally.summary()["mean_accepted_length"] for name, tally in sorted(categories.items())},
    }


def _rows(
    draft: LlamaForCausalLM, batches: Sequence[Batch], temperature: float
) -> Iterator[tuple[Prompt, list[int], list[bool]]]:
    for batch in batches:
        yield from zip(batch.prompts, batch.answers, draft_flags(draft, batch, temperature), strict=True)
