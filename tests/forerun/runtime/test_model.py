"""Loading: what is read from a checkpoint, where a draft's embeddings come from, and what is refused, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from forerun.errors import FailedPrecondition, NotFound
from forerun.runtime.architecture import check_config, context_length, probe
from forerun.runtime.model import EMBEDDINGS_NAME, load_model
from tests.models import ARCHITECTURES, make_tiny_draft, make_tiny_model

STATE = "recurrent state|layers of type"


def drop(folder: Path, *names: str) -> None:
    """Remove tensors from a checkpoint."""
    path = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if name not in names}
    save_file(kept, path, {"format": "pt"})


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def shard(folder: Path) -> None:
    """Rewrite a checkpoint as two files and an index."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    weight_map = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
    for file_name in set(weight_map.values()):
        part = {name: tensors[name] for name in names if weight_map[name] == file_name}
        save_file(part, folder / file_name, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "target")


@pytest.fixture
def bare_draft(tmp_path: Path) -> Path:
    """A draft with tied embeddings that does not ship them."""
    folder = make_tiny_model(tmp_path / "draft", seed=3, layers=1, tie_word_embeddings=True)
    drop(folder, EMBEDDINGS_NAME, "lm_head.weight")
    return folder


def test_what_is_known_about_a_model(target: Path) -> None:
    model = load_model(target, torch.bfloat16)
    assert (model.vocabulary_size, model.context_length, model.end_token_ids) == (320, 512, {2})
    assert (model.layer_count, model.kv_heads, model.head_dim) == (2, 2, 16)
    assert model.parameter_count == sum(tensor.numel() for tensor in load_file(target / "model.safetensors").values())
    assert model.parameter_bytes == 2 * model.parameter_count
    assert not model.module.training
    assert not any(parameter.requires_grad for parameter in model.module.parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_with_plain_keys_and_values_is_served(tmp_path: Path, architecture: str) -> None:
    assert load_model(make_tiny_model(tmp_path, architecture)).layer_count == 2


def test_end_tokens_come_from_the_generation_settings_too(target: Path) -> None:
    path = target / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [0, 2, 7]}))
    assert load_model(target).end_token_ids == {0, 2, 7}


def test_progress_is_reported_up_to_the_last_weight(target: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int]] = []
    load_model(target, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == len(seen)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("sharded", [False, True])
def test_a_draft_without_embeddings_takes_those_of_its_target(target: Path, bare_draft: Path, sharded: bool) -> None:
    expected = load_file(target / "model.safetensors")[EMBEDDINGS_NAME]
    if sharded:
        shard(target)
    module = load_model(bare_draft, embeddings_from=target).module
    assert torch.equal(module.get_input_embeddings().weight, expected)
    assert module.get_output_embeddings().weight is module.get_input_embeddings().weight
    assert not module.get_input_embeddings().weight.requires_grad


def test_borrowed_embeddings_are_no_reason_to_warn(
    target: Path, bare_draft: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    load_model(bare_draft, embeddings_from=target)
    assert capfd.readouterr() == ("", "")


def test_a_draft_with_embeddings_keeps_its_own(target: Path, tmp_path: Path) -> None:
    draft = make_tiny_draft(tmp_path / "draft", target, noise=0.5)
    model = load_model(draft, embeddings_from=target)
    with safe_open(draft / "model.safetensors", framework="pt") as tensors:
        assert torch.equal(model.module.get_input_embeddings().weight, tensors.get_tensor(EMBEDDINGS_NAME))


def test_a_draft_without_embeddings_needs_a_target(bare_draft: Path) -> None:
    with pytest.raises(FailedPrecondition, match="name the target's folder"):
        load_model(bare_draft)


def test_embeddings_of_another_width_are_refused(bare_draft: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", hidden=32)
    with pytest.raises(FailedPrecondition, match=r"\[320, 64\].*\[320, 32\].*made for another target"):
        load_model(bare_draft, embeddings_from=other)


def test_a_target_without_the_tensor_is_named(bare_draft: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", "gpt2")
    with pytest.raises(FailedPrecondition, match=r"other holds model\.embed_tokens\.weight"):
        load_model(bare_draft, embeddings_from=other)


def test_missing_weights_are_not_made_up(target: Path) -> None:
    drop(target, "model.layers.1.mlp.up_proj.weight")
    with pytest.raises(FailedPrecondition, match=r"\(1, the first is model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(target)


def test_a_damaged_checkpoint_is_refused(target: Path) -> None:
    (target / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(FailedPrecondition, match="cannot be loaded"):
        load_model(target)


def test_weights_of_another_size_are_refused(target: Path) -> None:
    edit_config(target, intermediate_size=96)
    with pytest.raises(FailedPrecondition, match="target"):
        load_model(target)


def test_an_empty_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no config\.json"):
        load_model(tmp_path)


def test_a_config_nobody_knows_is_refused(target: Path) -> None:
    edit_config(target, model_type="unheard_of")
    with pytest.raises(FailedPrecondition, match="unheard_of"):
        load_model(target)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("mamba", STATE),
        ("rwkv", STATE),
        ("recurrent_gemma", STATE),
        ("jamba", STATE),
        ("falcon_h1", STATE),
        ("qwen3_next", STATE),
        ("lfm2", STATE),
        ("llama4_text", "chunked"),
        ("t5", "encoder-decoder"),
        ("vit", "no causal language model"),
    ],
)
def test_state_that_cannot_be_truncated_is_refused(model_type: str, reason: str) -> None:
    with pytest.raises(FailedPrecondition, match=reason) as caught:
        check_config(AutoConfig.for_model(model_type))
    assert model_type in caught.value.message


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gpt2", "phi3"])
def test_keys_and_values_are_not_refused(model_type: str) -> None:
    check_config(AutoConfig.for_model(model_type))


def test_attention_with_terms_of_its_own_is_refused(tmp_path: Path) -> None:
    sinks = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = AutoConfig.for_model(
        "gpt_oss", vocab_size=64, head_dim=16, intermediate_size=32, num_local_experts=2, pad_token_id=0, **sinks
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(FailedPrecondition, match="its attention needs s_aux"):
        load_model(tmp_path)


def test_attention_that_does_not_come_to_us_is_refused(target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target, attn_implementation="sdpa")
    with pytest.raises(FailedPrecondition, match="2 layers, but only 0 of them"):
        probe(model)


def llama(**rope: object) -> PretrainedConfig:
    return AutoConfig.for_model("llama", max_position_embeddings=8192, rope_parameters={"rope_theta": 1e4, **rope})


def test_rotary_scaling_that_depends_on_length_ends_the_context_where_it_begins() -> None:
    assert context_length(llama(rope_type="default")) == 8192
    assert context_length(llama(rope_type="linear", factor=2.0)) == 8192
    scaled = llama(rope_type="dynamic", factor=2.0, original_max_position_embeddings=4096)
    assert context_length(scaled) == 4096
