"""Small tokenizer folders of the two families that matter, built in milliseconds: no download, every oddity present."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
CORPUS = [
    "Hello world, the cat sat on the mat.\nuser assistant system",
    "héllo wörld 你好 😀 END STOP",
    "aaa bbb  ccc",
] * 3
TEMPLATE = (
    "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{% for message in messages %}\n"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' }}\n"
    "    {% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<é think>", normalized=False), AddedToken("plain_added", normalized=False)])
    return tokenizer


def sentencepiece_tokenizer(decoder: str = "llama") -> Tokenizer:
    """Like Llama 2: the vocabulary spells spaces as ▁ and falls back to bytes."""
    pieces = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [
        "▁",
        "▁▁",
        "▁Hello",
        "Hello",
        "▁world",
        "!",
        "a",
        "▁a",
        "b",
        "c",
        "é",
        "你",
        "E",
        "N",
        "D",
        "\ufffd",
        "user",
    ]
    scored = [(piece, -float(rank)) for rank, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=len(SPECIAL), byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (*SPECIAL, "<unk>")])
    tokenizer.add_tokens([AddedToken("<é think>", normalized=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    if decoder == "metaspace":
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    else:
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    return tokenizer


def wordpiece_tokenizer() -> Tokenizer:
    """Not a language model's, but its decoder looks at neighbours."""
    pieces = ["<s>", "</s>", "[UNK]", "hello", "world", "##s", "##ing", ".", ",", "do", "n't", "not"]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return tokenizer


def lowercase(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def write_folder(folder: Path, tokenizer: Tokenizer, chat_template: object = TEMPLATE, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
        "chat_template": chat_template,
    }
    if chat_template is None:
        del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | config), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id("</s>")}), encoding="utf-8")
    return folder
