"""The draft model: some of the target's layers, thinner, with the target's embeddings in place of its own.

On disk it is an ordinary `LlamaForCausalLM` checkpoint without `model.embed_tokens.weight` and `lm_head.weight`; the
two models share a vocabulary, so whoever loads the draft puts the target's in.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from training.config import StudentConfig

_SHARED = ("model.embed_tokens.weight", "lm_head.weight")


def from_target(
    target: LlamaForCausalLM, config: StudentConfig, activity: list[Tensor] | None = None
) -> LlamaForCausalLM:
    """Copies the chosen layers in float32, each with its most active neurons; the embeddings stay frozen."""
    shape = copy.deepcopy(target.config)
    shape.num_hidden_layers, shape.intermediate_size = len(config.layers), config.intermediate_size
    student = _build(shape, target)
    for index, source in enumerate(config.layers):
        weights = {name: weight.detach().float() for name, weight in target.model.layers[source].state_dict().items()}
        kept = _kept(weights, None if activity is None else activity[source], config.intermediate_size)
        for name in ("mlp.gate_proj.weight", "mlp.up_proj.weight"):
            weights[name] = weights[name][kept]
        weights["mlp.down_proj.weight"] = weights["mlp.down_proj.weight"][:, kept]
        student.model.layers[index].load_state_dict(weights)
    student.model.norm.load_state_dict(target.model.norm.state_dict())
    return student


def _build(shape: LlamaConfig, target: LlamaForCausalLM) -> LlamaForCausalLM:
    student = LlamaForCausalLM(shape)
    student.to(target.device)  # type: ignore[arg-type]
    student.tie_weights()
    student.model.embed_tokens.weight.data.copy_(target.model.embed_tokens.weight)
    student.model.embed_tokens.weight.requires_grad_(False)
    return student


def _kept(weights: dict[str, Tensor], activity: Tensor | None, count: int) -> Tensor:
    """The neurons that move the layer's output most, in their old order."""
    strength = weights["mlp.down_proj.weight"].norm(dim=0)
    if activity is not None:
        strength = strength * activity.to(strength)
    if count > len(strength):
        raise ValueError(f"the target's layers have {len(strength)} neurons; intermediate_size {count} is more")
    kept: Tensor = strength.topk(count).indices.sort().values
    return kept


@torch.inference_mode()
def neuron_activity(target: LlamaForCausalLM, tokens: Tensor) -> list[Tensor]:
    """The root mean square of every MLP neuron over `tokens` [sequences, length], a tensor a layer."""
    found: list[Tensor] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0].float().square().mean(dim=(0, 1)).sqrt())

    hooks = [layer.mlp.down_proj.register_forward_pre_hook(note) for layer in target.model.layers]
    target.model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def own_weights(student: LlamaForCausalLM) -> dict[str, Tensor]:
    """The weights that are the draft's own, without compile wrappers in their names."""
    weights = {name.replace("_orig_mod.", ""): weight for name, weight in student.state_dict().items()}
    return {name: weight.detach() for name, weight in weights.items() if name not in _SHARED}


def save(student: LlamaForCausalLM, folder: Path) -> None:
    """Writes configuration and bfloat16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(student.config)
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.bfloat16
    config.save_pretrained(folder)
    weights = {name: weight.to("cpu", torch.bfloat16).contiguous() for name, weight in own_weights(student).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def load(folder: Path, target: LlamaForCausalLM) -> LlamaForCausalLM:
    """The saved draft in float32, on the target's device, with the target's embeddings."""
    student = _build(LlamaConfig.from_pretrained(folder), target)
    absent = student.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    if set(absent.missing_keys) - set(_SHARED) or absent.unexpected_keys:
        raise ValueError(f"{folder} is not a draft of this shape: {absent}")
    student.eval()  # type: ignore[no-untyped-call]
    return student
