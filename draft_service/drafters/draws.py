"""Where a drafting model's tokens come from: a forward and a draw for each, or a GPU's whole run of them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from forerun.runtime.model_runner import ForwardSlice
from forerun.runtime.output_head import Head
from forerun.runtime.sampling import DrawRequest, draw, is_plain

Drawn = tuple[int, float]
"""A token id, and the model's own probability of it."""


class Forward(Protocol):
    """What it needs of `model_runner.ModelRunner`."""

    def forward(self, slices: Sequence[ForwardSlice]) -> torch.Tensor:
        """Logits [sum of logits_count, V]."""


@runtime_checkable
class Chain(Protocol):
    """What it needs of `graph_runner.GraphRunner`."""

    def chain(
        self, slices: Sequence[ForwardSlice], requests: Sequence[DrawRequest], most: Sequence[int]
    ) -> list[list[Drawn]] | None:
        """Up to `most` tokens for each slice; None if it cannot for these."""


class Draws:
    """Feeds slices and draws tokens after them; one request for each slice that wants logits, one row each."""

    def __init__(self, forward: Forward, head: Head | None = None, chain: Chain | None = None) -> None:
        """`head` is what the model's logits stand for, where its head is restricted; a chain knows no such head."""
        assert head is None or chain is None
        self._forward = forward
        self._head = head
        self._chain = chain

    def draw(
        self, slices: Sequence[ForwardSlice], requests: Sequence[DrawRequest], most: Sequence[int]
    ) -> list[list[Drawn]]:
        """For each request 1 to `most` tokens, of which its slice's blocks hold all but the last."""
        if self._chain is not None and max(most, default=0) > 1:
            chained = self._chain.chain(slices, requests, most)
            if chained is not None:
                return chained
        logits = self._forward.forward(slices)
        return [[drawn] for drawn in self._draw_one(logits, requests)] if requests else []

    def _draw_one(self, logits: torch.Tensor, requests: Sequence[DrawRequest]) -> list[Drawn]:
        """Logits [R, width of the head] -> a token for each request."""
        if all(is_plain(request) for request in requests):
            drawn = self._draw_plainly(logits)
            if not any(math.isnan(likely) for _, likely in drawn):
                return drawn  # otherwise `draw` says what is wrong
        # [R, width of the head] -> [R, V]
        whole = self._head.spread(logits) if self._head is not None else logits
        tokens = [draws[0].token_id for draws in draw(whole, requests)]
        rows = whole.float()
        # [R]
        likely = (rows[range(len(tokens)), tokens] - rows.logsumexp(-1)).exp()
        return list(zip(tokens, likely.tolist(), strict=True))

    @torch.inference_mode()
    def _draw_plainly(self, logits: torch.Tensor) -> list[Drawn]:
        """`_draw_one` where every row takes its largest logit: in the width of the head, and one copy to the host."""
        # [R, 1]
        columns = logits.argmax(-1, keepdim=True)
        rows = logits.float()
        likely = (rows.gather(1, columns) - rows.logsumexp(-1, keepdim=True)).exp()
        tokens = self._head.token_ids[columns] if self._head is not None else columns
        return [(int(token), p) for token, p in torch.cat([tokens.double(), likely.double()], 1).tolist()]
