"""The last stage: the finished draft model's folder, with a model card and a note of which target it belongs to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from training.config import Config

_CARD = """---
license: apache-2.0
base_model: {base}
tags: [speculative-decoding, draft-model, distillation]
---
# {name}

A draft model for speculative decoding with forerun: {layers} layers of width {hidden}, {size:.1f} MB in bfloat16,
distilled from its target, `{target}`. It is of no use alone.

The weights are those of a `LlamaForCausalLM` **without** `model.embed_tokens.weight` and `lm_head.weight`: the draft
shares the target's vocabulary and its tied embeddings, which the runtime puts in when it loads the draft.

The folder may also hold `token_ranking.safetensors`: all token ids, the most frequent first, for a draft service that
restricts its output head (`--vocabulary N`). `training/ranking.py` makes it from text that the models write on the
project's own prompts.

## How it was made

`python -m training.distil --config {config}`, with the settings below.

The student starts as layers {copied} of the target, with the {neurons} most active of each layer's MLP neurons. The
target itself wrote the training data: chat-template dialogues whose user turns start from the project's own list of
topics and tasks, and answers at temperatures from 0 (just over half of them) to 1; part of the prompts hold long
passages, which the target wrote too. The loss, on answer tokens only, is the cross-entropy against the target's full
next-token distribution, with a share on its most likely token. No other data was used, and none of the prompts that
the draft is measured on. `training/NOTES.md` tells what else was tried.

```json
{settings}
```

## What it measured

{prompts} held-out prompts (first turns, chat template), up to {new_tokens} new tokens, draft length {draft_length},
float32 arithmetic. Mean accepted length is committed tokens per round. With sampling, both models use the same Gumbel
noise.

{table}

By category of prompt, greedy, the model alone:

{categories}

## Licence

Apache-2.0, as the target.
"""


def export(config: Config, draft: Path, measured: list[dict[str, Any]]) -> None:
    """Writes configuration, weights, `README.md` and `forerun.json`."""
    folder = config.output
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(draft / name, folder / name)
    (folder / "forerun.json").write_text(json.dumps(_note(config, measured), indent=2) + "\n")
    (folder / "README.md").write_text(_card(config, folder, measured))


def _note(config: Config, measured: list[dict[str, Any]]) -> dict[str, Any]:
    """What the services may want to know before the first token."""
    greedy = next((one for one in measured if one["temperature"] == 0), None)
    note = {
        "role": "draft",
        "target": config.target,
        "tokenizer": config.target,
        "embeddings": "target",
        "expected": greedy
        and {
            "draft_length": config.evaluate.draft_length,
            "mean_accepted_length": greedy["model"]["mean_accepted_length"],
            "acceptance_by_position": greedy["model"]["acceptance_by_position"],
        },
    }
    return note | {"head_tokens": config.head_tokens} if config.head_tokens else note


def _card(config: Config, folder: Path, measured: list[dict[str, Any]]) -> str:
    shape = json.loads((folder / "config.json").read_text())
    settings = {name: vars(getattr(config, name)) for name in ("student", "sample", "train")}
    return _CARD.format(
        base=config.base_model or config.target,
        name=folder.name,
        target=config.target,
        config=f"training/{config.target}.toml",
        layers=shape["num_hidden_layers"],
        hidden=shape["hidden_size"],
        size=(folder / "model.safetensors").stat().st_size / 1e6,
        copied=", ".join(map(str, config.student.layers)),
        neurons=config.student.intermediate_size,
        settings=json.dumps(settings, indent=1),
        prompts=measured[0]["settings"]["prompts"] if measured else 0,
        new_tokens=config.evaluate.new_tokens,
        draft_length=config.evaluate.draft_length,
        table=_table(measured) if measured else "Not measured.",
        categories=_categories(measured[0]["categories"]) if measured else "Not measured.",
    )


def _table(measured: list[dict[str, Any]]) -> str:
    lines = ["| temperature | drafter | mean accepted length | accepted at position 1, 2, ... |", "|---|---|---|---|"]
    for one in measured:
        for drafter in ("model", "ngram+model"):
            rates = ", ".join(f"{rate:.2f}" for rate in one[drafter]["acceptance_by_position"])
            length = one[drafter]["mean_accepted_length"]
            lines.append(f"| {one['temperature']} | {drafter} | {length:.2f} | {rates} |")
    return "\n".join(lines)


def _categories(lengths: dict[str, float]) -> str:
    return "\n".join(
        ["| category | mean accepted length |", "|---|---|", *(f"| {k} | {v:.2f} |" for k, v in lengths.items())]
    )
