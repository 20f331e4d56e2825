"""An output head that knows only the most frequent tokens: several times cheaper for a small draft, and lossless.

For a draft of a few layers most of a step is the product with the whole vocabulary. A draft that can propose only what
is frequent misses the rest, which the target then says itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from forerun.runtime.model import LoadedModel
from forerun.vocabulary import read_json

RANKING_FILE = "token_ranking.safetensors"  # beside the checkpoint: `token_ids`, the most frequent first


@dataclass(frozen=True, slots=True)
class Head:
    """The tokens that a restricted head knows, ascending, and the width of the whole vocabulary."""

    token_ids: torch.Tensor  # [N] int64
    vocabulary_size: int

    def spread(self, logits: torch.Tensor) -> torch.Tensor:
        """[R, N] -> [R, V], minus infinity where the head knows nothing."""
        whole = logits.new_full((logits.shape[0], self.vocabulary_size), float("-inf"))
        whole[:, self.token_ids] = logits
        return whole


def ranking(folder: Path, vocabulary_size: int) -> list[int]:
    """Token ids, the most frequent first: the checkpoint's own ranking if it has one, else the order of ids.

    A byte-pair vocabulary numbers its tokens in the order of their merges, which is nearly that of their frequency.
    """
    if not (folder / RANKING_FILE).is_file():
        return list(range(vocabulary_size))
    with safe_open(folder / RANKING_FILE, framework="pt") as tensors:
        ranked: list[int] = tensors.get_tensor("token_ids").tolist()
    return ranked


def head_for(model: LoadedModel, size: int, vocabulary_size: int) -> Head | None:
    """Restricts the model's head to its `size` most frequent tokens and the end tokens; enough is all of it.

    A size of 0 is what the checkpoint's own forerun.json recommends for a CPU as `head_tokens`, or all without one; on
    a GPU, where the head costs next to nothing, it is all.
    """
    size = size or (_recommended(model.folder) if model.device.type == "cpu" else 0)
    if not 0 < size < model.vocabulary_size:
        return None
    return restrict_head(model, size, ranking(model.folder, vocabulary_size), model.end_token_ids)


def _recommended(folder: Path) -> int:
    settings = read_json(folder / "forerun.json", optional=True)
    return int(settings.get("head_tokens", 0))


def restrict_head(model: LoadedModel, size: int, ranked: list[int], always: Collection[int]) -> Head:
    """Replaces the model's output head by the rows of the `size` first tokens of `ranked`, and of those in `always`."""
    kept = torch.tensor(sorted({*ranked[:size], *always}), device=model.device)
    whole = model.module.get_output_embeddings()  # type: ignore[no-untyped-call]
    assert isinstance(whole, torch.nn.Linear) and whole.bias is None, "an output head without bias"
    restricted = torch.nn.Linear(whole.in_features, len(kept), bias=False, device="meta")
    restricted.weight = torch.nn.Parameter(whole.weight[kept].contiguous(), requires_grad=False)
    model.module.set_output_embeddings(restricted)
    return Head(kept, model.vocabulary_size)
