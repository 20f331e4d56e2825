"""The second stage: the student learns to predict what the target would say, on the target's own answers.

Only positions that predict an answer token count. Matrices are trained with Muon, the norms with AdamW; weights are
float32, arithmetic bfloat16. A checkpoint holds everything that a stopped run needs to go on.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import Progress
from torch import Tensor
from transformers import LlamaForCausalLM

from training import loss, sample, student
from training.config import TrainConfig
from training.dialogue import ANSWER

_REPORT_EVERY = 100


@dataclass(frozen=True)
class Sequences:
    """All samples of one length, on the device."""

    tokens: Tensor  # [sequences, length]
    answers: Tensor  # [sequences, length] bool
    states: Tensor | None  # [sequences, length, hidden]: the target's last hidden states, where they are kept

    def rows(self, rows: Tensor) -> Sequences:
        return Sequences(self.tokens[rows], self.answers[rows], None if self.states is None else self.states[rows])


class Batches:
    """An endless, seeded, resumable supply: batch `step` is a function of the seed and the step."""

    def __init__(self, folder: Path, config: TrainConfig, device: torch.device) -> None:
        by_length: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for path in sorted(folder.glob("*.npz")):
            tokens, kinds = sample.load(path)
            by_length.setdefault(tokens.shape[1], []).append((tokens, kinds == ANSWER))
        if not by_length:
            raise ValueError(f"{folder} holds no samples; run the sample stage first")
        self._config = config
        self.groups = [_gather(by_length[length], device) for length in sorted(by_length)]

    def keep_states(self, target: LlamaForCausalLM, progress: Progress) -> None:
        """Has the target read everything now, instead of at every step that uses it."""
        task = progress.add_task("reading", total=sum(len(group.tokens) for group in self.groups))
        for index, group in enumerate(self.groups):
            count, length = group.tokens.shape
            states = torch.empty(
                (count, length, target.config.hidden_size), device=group.tokens.device, dtype=target.dtype
            )
            size = max(1, self._config.tokens_per_step // length)
            for start in range(0, count, size):
                part = slice(max(0, min(start, count - size)), start + size)  # all of one size: compiled once
                states[part] = read(target, group.tokens[part])
                progress.advance(task, size)
            self.groups[index] = replace(group, states=states)

    def at(self, step: int) -> Sequences:
        """The sequences of a step."""
        rng = random.Random(f"{self._config.seed}/{step}")
        long = len(self.groups) > 1 and rng.random() < self._config.long_share
        group = self.groups[-1] if long else self.groups[0]
        generator = torch.Generator().manual_seed(rng.getrandbits(62))
        count = max(1, self._config.tokens_per_step // group.tokens.shape[1])
        rows = torch.randint(len(group.tokens), (count,), generator=generator).to(group.tokens.device)
        return group.rows(rows)


def _gather(shards: list[tuple[Tensor, Tensor]], device: torch.device) -> Sequences:
    tokens, answers = (torch.cat(parts).to(device) for parts in zip(*shards, strict=True))
    return Sequences(tokens, answers, None)


@torch.no_grad()
def read(target: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """The target's last hidden states [sequences, length, hidden]."""
    states: Tensor = target.model(tokens.long(), use_cache=False).last_hidden_state
    return states


class Trainer:
    """Student, optimisers and the step they are at."""

    def __init__(self, target: LlamaForCausalLM, learner: LlamaForCausalLM, config: TrainConfig) -> None:
        self.target, self.student, self.config = target, learner, config
        self.step, self.seconds = 0, 0.0
        trained = [parameter for parameter in learner.parameters() if parameter.requires_grad]
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                [parameter for parameter in trained if parameter.ndim == 2],
                lr=config.learning_rate,
                weight_decay=0.0,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(
                [parameter for parameter in trained if parameter.ndim < 2],
                lr=config.learning_rate,
                betas=(0.9, 0.98),
                weight_decay=0.0,
            ),
        ]
        self._head = target.lm_head.weight.detach()
        self._chunk_loss: loss.ChunkLoss = loss.chunk_loss
        if target.device.type == "cuda":
            self._compile()

    def _compile(self) -> None:
        """Layer by layer, since all layers of a model share one compiled function."""
        for layer in (*self.target.model.layers, *self.student.model.layers):
            layer.compile(dynamic=False)
        self._chunk_loss = torch.compile(loss.chunk_loss, dynamic=False)

    def learn(self, batch: Sequences) -> tuple[Tensor, Tensor]:
        """One step; loss and agreement with the target's most likely token."""
        chosen = F.pad(batch.answers[:, 1:], (0, 1)).flatten().nonzero()[:, 0]  # the positions before answer tokens
        states = read(self.target, batch.tokens) if batch.states is None else batch.states
        wanted = states.flatten(0, 1)
        with torch.autocast(wanted.device.type, torch.bfloat16):
            hidden = self.student.model(batch.tokens.long(), use_cache=False).last_hidden_state.flatten(0, 1)
        values = loss.backward(
            hidden.to(self._head.dtype), wanted, self._head, chosen, self.config.hard_weight, self._chunk_loss
        )
        rate = self.config.learning_rate * self._schedule()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return values

    def done(self) -> float:
        """How much of the training is behind: 1 is all."""
        by_clock = self.seconds / (60 * self.config.minutes) if self.config.minutes else 0.0
        return min(1.0, max(by_clock, self.step / self.config.steps))

    def _schedule(self) -> float:
        """Linear warm-up, then half a cosine down to 1 %."""
        warm = min(1.0, (self.step + 1) / self.config.warmup)
        return warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * self.done())))

    def save(self, path: Path) -> None:
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "weights": student.own_weights(self.student),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.rename(path)

    def restore(self, path: Path) -> None:
        state = torch.load(path, map_location=self.target.device, weights_only=True)
        self.step, self.seconds = state["step"], state["seconds"]
        self.student.load_state_dict(state["weights"], strict=False)
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def train(trainer: Trainer, batches: Batches, checkpoint: Path, progress: Progress) -> Iterator[int]:
    """Trains to the last step; hands control back after every checkpoint, with the step."""
    config = trainer.config
    task = progress.add_task("training", total=config.steps, completed=trainer.step)
    reported = trainer.seconds
    sums = torch.zeros(2, device=trainer.target.device)
    while trainer.done() < 1:
        began = time.monotonic()
        batch = batches.at(trainer.step)
        sums += torch.stack(trainer.learn(batch))
        progress.update(task, completed=trainer.step)
        if trainer.step % _REPORT_EVERY == 0:
            mean_loss, agreement = (sums / _REPORT_EVERY).tolist()
            sums.zero_()
            rate = _REPORT_EVERY * config.tokens_per_step / (trainer.seconds - reported)
            reported = trainer.seconds
            progress.console.print(
                f"step {trainer.step}: loss {mean_loss:.4f}, agreement {agreement:.4f}, {rate:,.0f} tokens/s"
            )
        trainer.seconds += time.monotonic() - began
        if trainer.step % config.checkpoint_every == 0 or trainer.done() == 1:
            trainer.save(checkpoint)
            yield trainer.step
