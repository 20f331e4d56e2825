"""Loads a causal language model from a folder, with our attention in it, and says what there is to know about it.

A checkpoint without embeddings, like the draft that ships with forerun, borrows them from its target's checkpoint. What
cannot be served is refused here, at start-up, with the reason. Nothing is downloaded: a hub id becomes a folder before.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from forerun.errors import FailedPrecondition, NotFound
from forerun.runtime.architecture import check_config, context_length, probe
from forerun.runtime.attention import ATTENTION_NAME, LayerShape

EMBEDDINGS_NAME = "model.embed_tokens.weight"

Progress = Callable[[int, int], None]
"""Called with how many weights are loaded, and of how many."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for `ModelRunner`, in evaluation mode and without gradients.

    vocabulary_size   width of the logits; may exceed the tokenizer's vocabulary
    context_length    the longest sequence in tokens
    end_token_ids     tokens that end a generation
    layer_shapes      what one token leaves in the cache, layer by layer
    """

    module: PreTrainedModel
    folder: Path
    dtype: torch.dtype
    device: torch.device
    vocabulary_size: int
    context_length: int
    end_token_ids: frozenset[int]
    layer_shapes: tuple[LayerShape, ...]

    @property
    def layer_count(self) -> int:
        """Attention layers."""
        return len(self.layer_shapes)

    @property
    def kv_heads(self) -> int:
        """Key heads of the first layer."""
        return self.layer_shapes[0].kv_heads

    @property
    def head_dim(self) -> int:
        """Width of a key in the first layer."""
        return self.layer_shapes[0].key_width

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values per token, over all layers."""
        return sum(shape.numbers_per_token for shape in self.layer_shapes) * self.dtype.itemsize

    @property
    def parameter_count(self) -> int:
        """Weights, each counted once, borrowed embeddings included."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(parameter.nbytes for parameter in self.module.parameters())


def load_model(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    embeddings_from: Path | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load the checkpoint in `folder`: config.json and safetensors, as `save_pretrained` writes them.

    `embeddings_from` is the folder of the target; it is read only if `folder` has no embeddings of its own.
    Raises NotFound if there is no checkpoint, FailedPrecondition if it cannot be served.
    """
    if not (folder / "config.json").is_file():
        raise NotFound(f"{folder} holds no model: there is no config.json")
    try:
        config = AutoConfig.from_pretrained(folder)
    except (ValueError, KeyError, OSError) as error:
        raise FailedPrecondition(f"{folder}/config.json cannot be read: {error}") from error
    check_config(config)
    module = _load_module(folder, dtype, embeddings_from, progress)
    module.train(False).requires_grad_(False)
    module.to(torch.device(device))  # type: ignore[arg-type]
    layer_shapes, vocabulary_size = probe(module)
    return LoadedModel(
        module=module,
        folder=folder,
        dtype=dtype,
        device=module.device,
        vocabulary_size=vocabulary_size,
        context_length=context_length(config),
        end_token_ids=_end_token_ids(module),
        layer_shapes=tuple(layer_shapes),
    )


def _load_module(
    folder: Path, dtype: torch.dtype, embeddings_from: Path | None, progress: Progress | None
) -> PreTrainedModel:
    """The model on the CPU. transformers builds it empty and fills it weight by weight from the mapped file."""
    try:
        with _reported_to(progress):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                local_files_only=True,
                output_loading_info=True,
            )
            module, report = loaded
    except (ValueError, OSError, RuntimeError, SafetensorError) as error:
        raise FailedPrecondition(f"the model in {folder} cannot be loaded: {error}") from error
    embeddings = module.get_input_embeddings()
    head = module.get_output_embeddings()
    missing = set(report["missing_keys"])
    if EMBEDDINGS_NAME in missing:
        tensor = _read_embeddings(folder, embeddings_from, tuple(embeddings.weight.shape))
        embeddings.weight = torch.nn.Parameter(tensor.to(dtype), requires_grad=False)
        missing.remove(EMBEDDINGS_NAME)
        if module.config.tie_word_embeddings:
            head.weight = embeddings.weight
            missing.discard("lm_head.weight")
    if missing or report["mismatched_keys"]:
        wrong = sorted(missing) or sorted(map(str, report["mismatched_keys"]))
        raise FailedPrecondition(
            f"the checkpoint in {folder} lacks weights that its config.json calls for ({len(wrong)}, the first is "
            f"{wrong[0]}); it is incomplete or of another model"
        )
    assert isinstance(module, PreTrainedModel)
    return module


def _read_embeddings(folder: Path, embeddings_from: Path | None, shape: tuple[int, ...]) -> torch.Tensor:
    """The target's embeddings [vocabulary_size, hidden]; reads that tensor and no other."""
    if embeddings_from is None:
        raise FailedPrecondition(
            f"the model in {folder} ships without embeddings and uses those of its target: name the target's folder too"
        )
    with safe_open(_file_with_embeddings(embeddings_from), framework="pt") as tensors:
        found = tuple(tensors.get_slice(EMBEDDINGS_NAME).get_shape())
        if found != shape:
            raise FailedPrecondition(
                f"the model in {folder} needs embeddings of shape {list(shape)}, those of {embeddings_from} have "
                f"{list(found)}: this draft was made for another target; use that target, or a draft made for this one"
            )
        tensor: torch.Tensor = tensors.get_tensor(EMBEDDINGS_NAME)
    return tensor


def _file_with_embeddings(folder: Path) -> Path:
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        file_name: str | None = json.loads(index.read_text())["weight_map"].get(EMBEDDINGS_NAME)
        if file_name is not None and (folder / file_name).is_file():
            return folder / file_name
    elif single.is_file():
        with safe_open(single, framework="pt") as tensors:
            if EMBEDDINGS_NAME in tensors.keys():  # noqa: SIM118 - not a mapping
                return single
    raise FailedPrecondition(
        f"no safetensors file in {folder} holds {EMBEDDINGS_NAME}, which the draft needs: name the folder of the "
        "target that the draft was made for"
    )


def _end_token_ids(module: PreTrainedModel) -> frozenset[int]:
    """What the generation settings and the configuration call an end token, together."""
    found: set[int] = set()
    for settings in (module.generation_config, module.config.get_text_config(decoder=True)):
        ids = getattr(settings, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(found)


@contextmanager
def _reported_to(progress: Progress | None) -> Iterator[None]:
    """Send the progress of transformers' loader to `progress`, its bar nowhere, and let it complain of errors only.

    It would warn at length of weights that are missing, which is either a draft's embeddings or our own error to raise.
    """
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    previous = transformers_logging.set_tqdm_hook(
        lambda factory, args, kwargs: _Bar(progress or (lambda done, total: None), *args, **kwargs)
    )
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(previous)
        transformers_logging.set_verbosity(verbosity)


class _Bar:
    """As much of tqdm as transformers uses: an iterable or a counter, and a context manager."""

    def __init__(self, progress: Progress, items: Any = (), total: int | None = None, **_: object) -> None:
        self._progress = progress
        self._items = items
        self._total = total if total is not None else len(items)
        self._done = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield item
            self.update()

    def update(self, count: int = 1) -> None:
        self._done += count
        self._progress(self._done, self._total)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None
