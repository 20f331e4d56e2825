"""Distils a draft model from a target: `python -m training.distil --config training/smollm2-135m.toml`.

Four stages, each of which takes up where it was stopped: `sample` has the target write dialogues, `train` fits the
student, `evaluate` measures it on held-out prompts, `export` writes the checkpoint and its model card. Targets must be
of the Llama architecture with a chat template.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from forerun.runtime.pull import cache_dir, pull
from training import card, config, evaluate, sample, student
from training.train import Batches, Trainer, train

_ACTIVITY_SEQUENCES = 64


class Distillation:
    """The stages, and what they share."""

    def __init__(self, settings: config.Config, cache: Path, progress: Progress) -> None:
        self._config, self._progress = settings, progress
        self._folder = pull(settings.target, cache)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self._folder)
        self._samples, self._draft = settings.work / "samples", settings.work / "draft"
        self._checkpoint = settings.work / "checkpoint.pt"
        self._answers: dict[float, list[evaluate.Batch]] = {}
        settings.work.mkdir(parents=True, exist_ok=True)

    def sample(self) -> None:
        target = self._target(torch.bfloat16)
        sample.sample(target, self._tokenizer, self._config.sample, self._samples, self._progress)

    def train(self) -> None:
        target = self._target(torch.bfloat16)
        batches = Batches(self._samples, self._config.train, self._device)
        activity = student.neuron_activity(target, batches.groups[0].tokens[:_ACTIVITY_SEQUENCES].long())
        trainer = Trainer(target, student.from_target(target, self._config.student, activity), self._config.train)
        if self._checkpoint.exists():
            trainer.restore(self._checkpoint)
        if self._config.train.keep_states:
            batches.keep_states(target, self._progress)
        for step in train(trainer, batches, self._checkpoint, self._progress):
            student.save(trainer.student, self._draft)
            if measured := self._measure(0.0):
                self._progress.console.print(f"step {step}: {json.dumps(measured['model'])}")

    def evaluate(self) -> None:
        measured = [one for one in map(self._measure, (0.0, self._config.evaluate.temperature)) if one]
        self._measured.write_text(json.dumps(measured, indent=1) + "\n")
        self._progress.console.print(json.dumps(measured, indent=1))

    def export(self) -> None:
        measured = json.loads(self._measured.read_text()) if self._measured.exists() else []
        card.export(self._config, self._draft, measured)

    @property
    def _measured(self) -> Path:
        return self._config.work / "measured.json"

    def _target(self, dtype: torch.dtype) -> LlamaForCausalLM:
        model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(self._folder, dtype=dtype)
        model.to(self._device)  # type: ignore[arg-type]
        model.requires_grad_(False)
        return model

    def _measure(self, temperature: float) -> dict[str, Any] | None:
        """None when no held-out prompts are configured."""
        settings = self._config.evaluate
        if not settings.prompts:
            return None
        target = self._target(torch.float32)
        if temperature not in self._answers:
            prompts = evaluate.read_prompts(Path(settings.prompts), self._tokenizer, settings.limit)
            self._answers[temperature] = evaluate.answer(target, prompts, settings, temperature)
        return evaluate.measure(student.load(self._draft, target), self._answers[temperature], settings, temperature)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.distil", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="such as train.steps=100")
    parser.add_argument("--stages", default="sample,train,evaluate,export", help="default: %(default)s")
    arguments = parser.parse_args()
    settings = config.load(arguments.config, arguments.set)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        run = Distillation(settings, cache_dir(os.environ), progress)
        stages: dict[str, Callable[[], None]] = {
            "sample": run.sample,
            "train": run.train,
            "evaluate": run.evaluate,
            "export": run.export,
        }
        for stage in arguments.stages.split(","):
            stages[stage]()


if __name__ == "__main__":
    main()
