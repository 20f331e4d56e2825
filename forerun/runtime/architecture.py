"""Which model architectures can be served: those whose state is one key and one value per token, layer and head.

Rolling back a draft means forgetting tokens at the end. Recurrent and hybrid models, and anything else that folds
tokens into a running state, cannot do that and are refused. First the configuration is read, before any weight is
loaded; then a probe of two tokens through the loaded model checks that its attention is ours to compute. Both refuse
when in doubt. Sliding windows are served: our cache keeps every token, so that a window is only a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

from forerun.errors import FailedPrecondition
from forerun.runtime.attention import LayerShape, attach

SERVED_LAYER_TYPES = {"full_attention", "sliding_attention"}
# Configuration names that give away state which is not keys and values, in models that do not list their layer types.
STATE_WORDS = ("mamba", "ssm_", "rwkv", "recurrent", "linear_attn", "linear_conv", "conv_l_cache", "lightning", "xlstm")
# Rotary scalings whose frequencies change with the longest position of a batch once it passes the original length.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
HARMLESS_OPTIONS = {"position_ids", "is_causal"}


def check_config(config: PretrainedConfig) -> None:
    """Raise FailedPrecondition, naming the reason, for a model whose sequences cannot be truncated."""
    reason = _reason_to_refuse(config.get_text_config(decoder=True))
    if reason is not None:
        raise FailedPrecondition(
            f"model type {config.model_type!r} cannot be served: {reason}. forerun takes back rejected candidates by "
            "forgetting the last tokens, which needs causal attention over a plain key-value cache in every layer; "
            "choose such a model"
        )


def context_length(config: PretrainedConfig) -> int:
    """The longest sequence, in tokens, that the model may be given.

    For length-dependent rotary scalings it is the original length: beyond it, one sequence's keys would change with the
    other sequences of the batch.
    """
    text_config = config.get_text_config(decoder=True)
    longest = getattr(text_config, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest <= 0:
        raise FailedPrecondition(f"the configuration of {config.model_type!r} has no max_position_embeddings")
    for rope in _rope_parameters(text_config):
        kind = rope.get("rope_type", rope.get("type"))
        if kind in LENGTH_DEPENDENT_ROPE:
            original = rope.get("original_max_position_embeddings")
            original = original or getattr(text_config, "original_max_position_embeddings", None)
            longest = min(longest, int(original or longest))
    return longest


def probe(model: PreTrainedModel) -> tuple[list[LayerShape], int]:
    """Run two tokens through a model loaded with our attention, to learn what it stores and how wide its logits are.

    Returns the layers in order. Raises FailedPrecondition if a layer's attention does not come to us exactly once, or
    asks for something we would not compute.
    """
    backend = _Probe(model.config.get_text_config(decoder=True))
    attach(model, backend)
    # [1, 2]
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    positions = torch.tensor([[0, 1]], device=model.device)
    with torch.inference_mode():
        # [1, 2, V]
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
    if list(backend.shapes) != list(range(backend.layer_count)):
        raise FailedPrecondition(
            f"model type {model.config.model_type!r} cannot be served: it has {backend.layer_count} layers, but only "
            f"{len(backend.shapes)} of them leave their attention to the attention interface of transformers"
        )
    return list(backend.shapes.values()), logits.shape[-1]


class _Probe:
    """An attention backend that attends to nothing and notes what it is asked for."""

    def __init__(self, config: PretrainedConfig) -> None:
        self.config = config
        self.layer_count = int(config.num_hidden_layers)
        self.shapes: dict[int, LayerShape] = {}

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        sliding_window: int | None,
        softcap: float | None,
        options: dict[str, object],
    ) -> torch.Tensor:
        """Shapes as in `AttentionBackend.attend`."""
        layer = module.layer_idx
        assert isinstance(layer, int)
        asked = {name for name, value in options.items() if value is not None and value is not False}
        problem = None
        if layer in self.shapes:
            problem = f"layer {layer} attends more than once"
        elif asked - HARMLESS_OPTIONS:
            problem = f"its attention needs {', '.join(sorted(asked - HARMLESS_OPTIONS))}"
        elif getattr(module, "is_causal", True) is False or options.get("is_causal") is False:
            problem = "its attention is not causal"
        elif sliding_window != _window(self.config, layer):
            problem = f"layer {layer} attends over {sliding_window} tokens, its configuration says otherwise"
        if problem is not None:
            raise FailedPrecondition(f"model type {self.config.model_type!r} cannot be served: {problem}")
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
        # [1, T, heads, v]
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1])


def _reason_to_refuse(config: PretrainedConfig) -> str | None:
    settings = config.to_dict()
    layer_types = set(getattr(config, "layer_types", None) or [])
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if config.is_encoder_decoder:
        return "it is an encoder-decoder"
    if model_class is None:
        return "transformers knows no causal language model of this type"
    if layer_types - SERVED_LAYER_TYPES:
        return f"it has layers of type {', '.join(sorted(layer_types - SERVED_LAYER_TYPES))}"
    if getattr(model_class, "_is_stateful", False):
        return "it keeps a recurrent state"
    words = [name for name in (config.model_type, *settings) if any(word in name.lower() for word in STATE_WORDS)]
    if words:
        return f"it keeps a recurrent state ({words[0]})"
    if settings.get("attention_chunk_size"):
        return "its attention is chunked"
    if settings.get("use_bidirectional_attention") or settings.get("is_causal") is False:
        return "its attention is not causal"
    return None


def _window(config: PretrainedConfig, layer: int) -> int | None:
    """The sliding window of a layer, by its configuration."""
    window: int | None = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        return window if layer_types[layer] == "sliding_attention" else None
    return window if getattr(config, "use_sliding_window", True) else None


def _rope_parameters(config: PretrainedConfig) -> list[dict[str, Any]]:
    """The rotary settings, one entry per layer type where a model has several."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in found.values() if isinstance(value, dict)]
    return nested or [found]
