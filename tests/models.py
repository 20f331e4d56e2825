"""Tiny random checkpoints for tests: real transformers models with a real tokenizer, made in a fraction of a second.

`import tests.models` works in any test (pytest puts the repository's root on the path). The weights are float32 and
large enough that the logits are peaked, so that greedy decoding has no near-ties and is not stuck on one token. The
tokenizer is a byte-level BPE with a ChatML template: any text survives encode and decode.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi3", "gpt2")
"""What `make_tiny_model` can make. mistral has a sliding window, in gemma2 and gemma3 every other layer has one."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1, 2: padding, beginning of text, end of text."""

WINDOW = 24
"""The sliding window, in tokens, of the architectures that have one."""

torch.set_num_threads(1)  # products this small only lose by being shared out

_TEXT = (
    "The draft runs ahead and the target checks what it wrote, token by token, so that the answer stays the same. "
    "user assistant system What is the capital of France? Paris is the capital of France. def add(a, b): return a + b "
)
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tiny_model(
    folder: Path,
    architecture: str = "llama",
    seed: int = 0,
    vocabulary_size: int = 320,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    context_length: int = 512,
    peak: float = 1.0,
    **config: Any,
) -> Path:
    """Save a random model and its tokenizer in `folder`, which is made, and return it. The same seed, the same weights.

    vocabulary_size   width of the logits; the tokenizer has 320 tokens whatever this is, so 320 is the least
    peak              scales the logits; at 1.0 their standard deviation is 4 and the entropy of a token about 2 nats
    config            any other field of the architecture's configuration, for instance `tie_word_embeddings=True`
    """
    tokenizer = _tokenizer()
    assert vocabulary_size >= len(tokenizer), "a token of the tokenizer would have no logit"
    settings = _settings(architecture, vocabulary_size, layers, hidden, heads, kv_heads, context_length) | config
    model = _random_model(AutoConfig.for_model(architecture, **settings), seed, peak)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tiny_draft(folder: Path, target_folder: Path, noise: float = 0.05, seed: int = 1) -> Path:
    """Save a draft in `folder`: the target's weights, each matrix blurred by `noise` times its own spread.

    Greedy agreement, roughly: always at noise 0.0, 0.6 at 0.05, 0.4 at 0.1, 0.2 at 0.2, hardly ever from 0.5 on.
    """
    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _random_model(config: PretrainedConfig, seed: int, peak: float) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                spread = 0.5 * peak if parameter is head else 0.2
                parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _settings(
    architecture: str, vocabulary_size: int, layers: int, hidden: int, heads: int, kv_heads: int, context_length: int
) -> dict[str, Any]:
    """The configuration in the architecture's own words."""
    shared = {"vocab_size": vocabulary_size, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if architecture == "gpt2":
        return shared | {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": context_length}
    settings: dict[str, Any] = shared | {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": context_length,
        "tie_word_embeddings": False,
    }
    if architecture == "mistral":
        return settings | {"sliding_window": WINDOW}
    if architecture in ("gemma2", "gemma3_text"):
        kinds = ["sliding_attention" if layer % 2 == 0 else "full_attention" for layer in range(layers)]
        return settings | {"sliding_window": WINDOW, "layer_types": kinds, "query_pre_attn_scalar": hidden // heads}
    assert architecture in ARCHITECTURES, f"no tiny {architecture}; there are {', '.join(ARCHITECTURES)}"
    return settings


@cache
def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of 320 tokens: three special ones, 256 bytes and what it learns from a few sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL_TOKENS[0],
        bos_token=SPECIAL_TOKENS[1],
        eos_token=SPECIAL_TOKENS[2],
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast
