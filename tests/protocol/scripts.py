"""Scripted models: a target whose draws are a pure function of seed and history, and drafters good and bad.

They compute over a paged pool of their own and read the history back from it, as attention would: a block given to two
sequences, or a length counted as computed that is not, changes what they see, and that is an assertion here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draft_service.drafters.drafter import Proposal, Want
from draft_service.drafters.draws import Drawn, Draws
from draft_service.drafters.model import ModelDrafter
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.model_runner import ForwardSlice, drawn_by_row
from forerun.runtime.sampling import Draw, DrawRequest
from forerun.runtime.sequence import Sequence as TokenSequence
from forerun.sampling_params import SamplingParams
from forerun.v1 import draft_pb2, types_pb2
from target_service.step import Step

END, STOP = 0, 1  # the model's end token; a token that some sessions stop at. Both are rare.


@dataclass(frozen=True)
class Script:
    """A language model as a table that nobody has written down."""

    vocabulary_size: int
    rarity: int  # an end token about every so many tokens
    memory: int  # the last so many tokens decide, and now and then all of them

    def next_token(self, params: SamplingParams, prompt_length: int, history: Sequence[int]) -> int:
        """The token at position `len(history)`."""
        position = len(history)
        lot = hash((params.seed, position))
        seen = tuple(history if lot % 5 == 0 else history[-self.memory :])
        lot = hash((params.seed, seen)) >> 3
        token = lot % self.rarity
        if token <= STOP and position - prompt_length >= params.min_tokens:
            return token
        return 2 + (lot >> 8) % (self.vocabulary_size - 2)

    def plain(self, params: SamplingParams, prompt: Sequence[int], context_length: int) -> tuple[list[int], int]:
        """What decoding without any speculation commits, prompt included, and the finish reason."""
        tokens = list(prompt)
        ends = {*params.stop_token_ids} | (set() if params.ignore_eos else {END})
        limit = min(len(prompt) + params.max_tokens, context_length)
        while len(tokens) < limit:
            tokens.append(self.next_token(params, len(prompt), tokens))
            if tokens[-1] in ends:
                return tokens, types_pb2.FINISH_REASON_STOP
        return tokens, types_pb2.FINISH_REASON_LENGTH


class Pool:
    """The tokens whose keys and values lie in each slot of the paged cache."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[int, int] = {}

    def forward(self, part: ForwardSlice) -> list[int]:
        """Writes what is fed and returns the whole history that attention would see."""
        assert part.token_ids, "nothing is fed"
        size, table = self._block_size, part.block_table
        end = part.start + len(part.token_ids)
        slots = [table[position // size] * size + position % size for position in range(end)]
        self._slots.update(zip(slots[part.start :], part.token_ids, strict=True))
        return [self._slots[slot] for slot in slots]


class ScriptedTarget:
    """Executes the target engine's steps."""

    def __init__(self, script: Script, block_size: int) -> None:
        self._script = script
        self._pool = Pool(block_size)
        self._drawn: list[int] = []  # by the rows of the last step

    def execute(self, step: Step) -> list[list[Draw]]:
        """The draws for each part that draws. Steps come in the order in which a device would compute them."""
        draws = []
        for part in step.parts:
            forward, request = part.forward, part.draw
            ahead = forward.token_ids[0] < 0
            if ahead:
                forward = replace(forward, token_ids=(self._drawn[drawn_by_row(forward.token_ids[0])],))
            history = self._pool.forward(forward)
            if request is None:
                continue
            told = list(request.token_ids[:-1]) if ahead else list(request.token_ids)
            assert history[: len(told)] == told, "the cache holds other tokens than the sequence"
            assert len(history) == len(request.token_ids), "the draw is not after what was fed"
            rows = range(request.first_position, request.first_position + request.row_count)
            draws.append(
                [
                    Draw(self._script.next_token(request.params, request.prompt_length, history[:position]))
                    for position in rows
                ]
            )
        self._drawn = [draw.token_id for rows in draws for draw in rows]
        return draws


Guess = Callable[[int, int], bool]  # (hash of history, output index) -> whether the draft guesses right

GUESSES: dict[str, Guess] = {
    "right": lambda lot, index: True,
    "junk": lambda lot, index: False,
    "mixed": lambda lot, index: lot % 10 < 7,
    "fading": lambda lot, index: index < 9,
    "slow": lambda lot, index: True,
}


class ScriptedDrafter(ModelDrafter):
    """The real model drafter, cache and chunks and all, whose model is a script and a chance of being right."""

    def __init__(self, script: Script, cache: KvCache, max_batch_tokens: int, guess: Guess) -> None:
        super().__init__(_ScriptedDraws(Pool(cache.block_size), self._next), cache, (END,), max_batch_tokens)
        self._script = script
        self._guess = guess

    def _next(self, history: list[int], request: DrawRequest) -> int:
        assert history == list(request.token_ids), "the cache holds other tokens than the sequence"
        token = self._script.next_token(request.params, request.prompt_length, history)
        if self._guess(hash((7, *history)), len(history) - request.prompt_length):
            return token
        return (token + 1) % self._script.vocabulary_size


class _ScriptedDraws(Draws):
    """Draws from the history that was fed and that the cache held before it, a token at a time."""

    def __init__(self, pool: Pool, next_token: Callable[[list[int], DrawRequest], int]) -> None:
        self._pool = pool
        self._next_token = next_token

    def draw(
        self, slices: Sequence[ForwardSlice], requests: Sequence[DrawRequest], most: Sequence[int]
    ) -> list[list[Drawn]]:
        histories = [(self._pool.forward(part), part.logits_count) for part in slices]
        rows = [history for history, wanted in histories if wanted]
        return [[(self._next_token(*pair), 1.0)] for pair in zip(rows, requests, strict=True)]


class LeapingDrafter:
    """Proposes several tokens at once, sometimes more than asked for, sometimes none, sometimes the last for now."""

    total_blocks = 0
    used_blocks = 0
    reused_tokens = 0

    def __init__(self, script: Script) -> None:
        self._script = script
        self._calls = 0

    def plan(self, wants: Sequence[Want]) -> tuple[list[tuple[Want, list[int]]], Sequence[Want]]:
        return [(want, list(want.sequence.token_ids)) for want in wants], ()

    def execute(self, batch: list[tuple[Want, list[int]]]) -> list[Proposal]:
        return [self._propose(want, history) for want, history in batch]

    def _propose(self, want: Want, history: list[int]) -> Proposal:
        self._calls += 1
        lot = hash((self._calls, *history))
        if self._calls % 3 == 0:
            return Proposal((), exhausted=lot % 2 == 0)
        known = len(history)
        for step in range(1 + lot % 6):
            token = self._script.next_token(want.params, want.prompt_length, history)
            history.append(token if (lot >> step) % 8 else 2)
        return Proposal(tuple(history[known:]), exhausted=lot % 7 == 0)

    def settle(self, batch: Any, proposals: Sequence[Proposal]) -> None:
        """Nothing is cached."""

    def truncated(self, sequence: TokenSequence) -> None:
        """Nothing is cached."""

    def forget(self, sequence: TokenSequence) -> None:
        """Nothing is cached."""


class MaliciousDraft:
    """Stands where a draft engine stands and answers whatever it hears with well-formed nonsense."""

    def __init__(self, script: Script, seed: int) -> None:
        self.sessions = self
        self._vocabulary_size = script.vocabulary_size
        self._random = random.Random(seed)
        self._ids = [0]

    def connect(self, stream: Any) -> None:
        """It keeps no book."""

    def disconnect(self, stream: Any) -> None:
        """It keeps no book."""

    def __len__(self) -> int:
        return 0

    def plan(self, now: float) -> None:
        """It does not work."""

    def plan_ahead(self, step: Any, now: float) -> None:
        """Nor ahead."""

    def handle(self, stream: Any, entry: draft_pb2.DraftRequestEntry, now: float) -> None:
        self._ids = [*self._ids[-3:], entry.session_id]
        if entry.HasField("close"):  # which may answer nonsense, without end
            return
        for _ in range(self._random.choice((0, 1, 1, 2, 4))):
            stream.send(self._nonsense(entry))

    def _nonsense(self, heard: draft_pb2.DraftRequestEntry) -> draft_pb2.DraftResponseEntry:
        lot = self._random
        answer = draft_pb2.DraftResponseEntry(session_id=heard.session_id, attachment=heard.attachment)
        if lot.random() < 0.2:
            answer.session_id = lot.choice((*self._ids, 2**64 - 1))
        if lot.random() < 0.2:
            answer.attachment = lot.choice((0, max(0, heard.attachment - 1), (heard.attachment + 1) % 2**32, 2**32 - 1))
        kind = lot.random()
        if kind < 0.8:
            answer.candidates.CopyFrom(self._candidates(heard))
        elif kind < 0.85:
            answer.need_open.committed_length = lot.choice((0, 1, 2**32 - 1))
        elif kind < 0.9:
            answer.unknown_session.SetInParent()
        elif kind < 0.95:
            answer.detached.reason = lot.choice((0, 2, 4, 99))
        return answer

    def _candidates(self, heard: draft_pb2.DraftRequestEntry) -> draft_pb2.Candidates:
        lot = self._random
        head = heard.advance.start_position + len(heard.advance.token_ids)
        if heard.HasField("open"):
            head = len(heard.open.prompt_token_ids) + len(heard.open.output_token_ids)
        elif heard.HasField("rollback"):
            head = heard.rollback.start_position + len(heard.rollback.token_ids)
        refuted = max(heard.open.refuted_epoch, heard.rollback.refuted_epoch)
        ceiling = 2**32 - 1 if lot.random() < 0.05 else self._vocabulary_size - 1
        count = lot.choice((0, 1, 2, 4, 8, 3000))
        return draft_pb2.Candidates(
            epoch=lot.choice((0, refuted, refuted + 1, refuted + 1, refuted + 2, 2**63, 2**64 - 1)) % 2**64,
            start_position=lot.choice((0, max(0, head - 1), head, head, head + 1, 2**32 - 1)),
            token_ids=[lot.randint(0, ceiling) for _ in range(min(count, 40))] * (75 if count > 40 else 1),
            exhausted=lot.random() < 0.3,
            round_index=lot.choice((0, 2**32 - 1)),
            draft_ns=lot.choice((0, 1000, 2**64 - 1)),
            steps=lot.choice((0, 2**32 - 1)),
        )
