"""The two models of a pair, loaded as their services load them, and the prompts in the target's tokens.

A pair whose vocabularies differ is refused before any weights are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from draft_service.assembly import NGRAM, NGRAM_FIRST, draft_folder, lighten
from forerun.config import DraftConfig, TargetConfig
from forerun.errors import FailedPrecondition
from forerun.model_folder import model_folder
from forerun.runtime.loading import load_runner
from forerun.runtime.model_runner import ModelRunner
from forerun.runtime.output_head import Head
from forerun.runtime.packed_linear import pack_linears
from forerun.vocabulary import Vocabulary, differences, read_vocabulary


class VocabulariesDiffer(FailedPrecondition):
    """The pair cannot speculate; `differences` says why, a sentence each."""

    def __init__(self, target: str, draft: str, differences: Sequence[str]) -> None:
        super().__init__(f"{target} (named first) and {draft} have different vocabularies: {'; '.join(differences)}")
        self.differences = tuple(differences)


@dataclass(frozen=True, slots=True)
class Model:
    """A runner with the CPU threads that its service would have, and the restricted head if it has one."""

    runner: ModelRunner
    threads: int
    head: Head | None = None

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self.runner.model.end_token_ids))


@dataclass(frozen=True, slots=True)
class Pair:
    """Ready to be measured. Without a draft model there is only the lookup."""

    vocabulary: Vocabulary
    prompts: tuple[tuple[int, ...], ...]  # token ids
    target: Model
    draft: Model | None


def load_pair(target: TargetConfig, draft: DraftConfig, cache: Path, prompts: Sequence[str], tokens: int) -> Pair:
    """Loads both, with room for `tokens` after each prompt. Raises ForerunErrors, VocabulariesDiffer among them."""
    folder = model_folder(target.model, cache)
    name = draft.model.removeprefix(NGRAM_FIRST)
    of_draft = draft_folder(name, cache) if name != NGRAM else None
    if of_draft is not None and (of_draft / "tokenizer.json").is_file():
        found = differences(folder, of_draft)
        if found:
            raise VocabulariesDiffer(target.model, name, found)
    vocabulary, encoded = read_vocabulary(folder), encode(folder, prompts)
    room = sum(len(prompt) + tokens + target.block_size for prompt in encoded) + 2 * target.block_size
    large = load_runner(replace(target, kv_cache_tokens=room), folder)
    _fitting(encoded, tokens, large)
    pack_linears(large.model)
    small = None
    if of_draft is not None:
        runner = load_runner(replace(draft, kv_cache_tokens=room, block_size=target.block_size), of_draft, folder)
        _fitting(encoded, tokens, runner)
        head = lighten(runner.model, draft, vocabulary.size)
        small = Model(runner, draft.threads, head)
    return Pair(vocabulary, encoded, Model(large, target.threads), small)


def encode(folder: Path, prompts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each prompt as a chat's first turn, if the checkpoint has a chat template, else as it is."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not tokenizer.chat_template:
        return tuple(tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts)
    turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
    texts = [tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) for turn in turns]
    return tuple(tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)


def _fitting(prompts: Sequence[Sequence[int]], tokens: int, runner: ModelRunner) -> None:
    longest, context_length = max(map(len, prompts)) + tokens, runner.model.context_length
    if longest > context_length:
        raise FailedPrecondition(
            f"the longest prompt and {tokens} tokens make {longest}, more than the {context_length} that the model in "
            f"{runner.model.folder} can hold: ask for fewer with --tokens"
        )
