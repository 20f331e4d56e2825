"""Writes dialogues with the target playing both sides: who speaks at each token, and what is not for the model to say.

A dialogue is forced tokens (template, opening words), user turns sampled warm, and answers sampled as they will be in
use. All sequences advance together; the state of each is a row in a few small tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from training.decoder import LockstepDecoder

FORCED, USER, ANSWER = 0, 1, 2  # who wrote a token; only answers are trained on
_ENDINGS = (".", "?", "!", ":", "\n")


class Template:
    """The chat template's fixed parts, as token ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        user, answer, again = "@user@", "@answer@", "@again@"
        turns = [("user", user), ("assistant", answer), ("user", again)]
        messages = [{"role": role, "content": content} for role, content in turns]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
        head, rest = text.split(user)
        to_answer, rest = rest.split(answer)
        to_user = rest.split(again)[0]
        self.prefix = _encode(tokenizer, head)
        self.to_answer = _encode(tokenizer, to_answer)
        self.to_user = _encode(tokenizer, to_user)
        self.end = self.to_answer[0]
        if self.to_user[0] != self.end:
            raise ValueError("the chat template ends the two kinds of turn differently; dialogues need one end token")
        pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        self.endings = torch.tensor([piece.endswith(_ENDINGS) for piece in pieces])


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass(frozen=True)
class Script:
    """What a batch of dialogues is asked to be."""

    prefix: Tensor  # [batch, n] forced, of one length
    openings: Sequence[Sequence[int]]  # forced after the prefix, of any length; may hold the end of the turn
    user_temperature: Tensor  # [batch]
    answer_temperature: Tensor  # [batch]; 0 is greedy
    user_limit: Tensor  # [batch]; a turn this long ends with its sentence
    answer_limit: Tensor  # [batch]


Draw = Callable[[Tensor, Tensor], Tensor]


def draw(logits: Tensor, temperature: Tensor) -> Tensor:
    """Samples a token a row; temperature 0 is the most likely one."""
    noise = -torch.log(-torch.log(torch.rand_like(logits, dtype=torch.float32).clamp_min(1e-20)))
    warm = (temperature > 0)[:, None]
    return (logits.float() / temperature.clamp_min(1e-3)[:, None] + torch.where(warm, noise, 0.0)).argmax(-1)


class _Scene:
    """Where each dialogue stands, and who decides its next token."""

    def __init__(self, script: Script, template: Template) -> None:
        device = script.prefix.device
        batch, self._width = len(script.openings), max(1, *map(len, script.openings))
        padded = [[*opening, *[0] * (self._width - len(opening))] for opening in script.openings]
        self._forced = torch.tensor(padded, device=device)
        self._forced_length = torch.tensor([len(opening) for opening in script.openings], device=device)
        # After the end token of a turn the rest of the border follows by itself: first to_answer, then to_user.
        self._border = torch.tensor([*template.to_answer[1:], *template.to_user[1:]], device=device)
        self._turn_around = len(template.to_answer) - 1
        self._end, self._endings, self._script = template.end, template.endings.to(device), script
        self._pending = torch.full((batch,), -1, device=device)
        self._answering = torch.zeros(batch, dtype=torch.bool, device=device)
        self._spoken = torch.zeros(batch, dtype=torch.long, device=device)
        self._last = script.prefix[:, -1]

    def temperature(self) -> Tensor:
        return torch.where(self._answering, self._script.answer_temperature, self._script.user_temperature)

    def advance(self, index: int, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens at this index after the prefix, given what the model drew, and who wrote them."""
        scripted = index < self._forced_length
        bordering = self._pending >= 0
        limit = torch.where(self._answering, self._script.answer_limit, self._script.user_limit)
        sated = (self._spoken >= limit) & (self._endings[self._last] | (self._spoken >= 2 * limit))
        tokens = torch.where(sated, self._end, drawn)
        tokens = torch.where(bordering, self._border[self._pending.clamp_min(0)], tokens)
        tokens = torch.where(scripted, self._forced[:, min(index, self._width - 1)], tokens)
        kinds = torch.where(self._answering, ANSWER, USER).masked_fill(scripted | bordering | sated, FORCED)
        closing = (tokens == self._end) & ~bordering
        following = self._pending + 1
        done = (following == self._turn_around) | (following == len(self._border)) | ~bordering
        following = following.masked_fill(done, -1)
        self._pending = torch.where(closing, torch.where(self._answering, self._turn_around, 0), following)
        self._answering = self._answering ^ closing
        self._spoken = (self._spoken + 1).masked_fill(closing | bordering, 0)
        self._last = tokens
        return tokens, kinds


@torch.inference_mode()
def write(decoder: LockstepDecoder, script: Script, template: Template, drawing: Draw = draw) -> tuple[Tensor, Tensor]:
    """Tokens and kinds, both [batch, decoder.length]. An opening may hold the end token, but not what follows it."""
    scene = _Scene(script, template)
    start = script.prefix.shape[1]
    tokens = torch.zeros(script.prefix.shape[0], decoder.length, dtype=torch.long, device=script.prefix.device)
    kinds = torch.full_like(tokens, FORCED)
    tokens[:, :start] = script.prefix
    decoder.prefill(script.prefix)
    for position in range(start, decoder.length):
        logits = decoder.step(tokens[:, position - 1], position - 1)
        said, kind = scene.advance(position - start, drawing(logits, scene.temperature()))
        tokens[:, position], kinds[:, position] = said, kind
    return tokens, kinds
