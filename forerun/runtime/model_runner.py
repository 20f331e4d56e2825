"""The only caller of the model: runs one ragged batch of new tokens through it, over the paged cache.

It owns the cache tensors and knows nothing of sessions, sampling or scheduling. A forward is given immutable slices, so
it can run in a worker thread while the event loop goes on changing sequences. One forward at a time.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from forerun.runtime.attention import PagedBatch, PagedPools, PagedSequence, attach
from forerun.runtime.model import LoadedModel
from forerun.runtime.sampling import Draw, DrawRequest, draw

DEFAULT_CPU_CACHE_TOKENS = 32_768
CPU_MEMORY_SHARE = 0.25  # of the machine's memory; both services may share one machine


@dataclass(frozen=True, slots=True)
class ForwardSlice:
    """What one sequence brings to a forward.

    token_ids      the new tokens, at positions start .. start + len(token_ids); at least one. Below zero: not known
                   when the slice was made, see `drawn_by_row`
    start          how many tokens of the sequence are in the cache already
    block_table    cache blocks in token order, covering start + len(token_ids) tokens or more
    logits_count   how many of the last rows need logits; 0 for a chunk of a prompt that is not its last
    """

    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    logits_count: int


def drawn_by_row(row: int) -> int:
    """Stands in a slice for the token that a row of draws of the step begun before this one gave; its own inverse."""
    return -1 - row


def kv_bytes_per_block(model: LoadedModel, block_size: int = 16) -> int:
    """Bytes of keys and values that one block holds, over all layers."""
    return block_size * model.kv_bytes_per_token


def block_count_for(model: LoadedModel, memory_bytes: int, block_size: int = 16) -> int:
    """How many blocks fit into `memory_bytes`; at least one."""
    return max(1, memory_bytes // kv_bytes_per_block(model, block_size))


def default_block_count(
    model: LoadedModel, block_size: int = 16, max_sessions: int = 64, memory_share: float = 0.85
) -> int:
    """A size for the cache when nobody asks for one.

    On a GPU `memory_share` of what the model has left free, but no more than `max_sessions` full contexts need. On a
    CPU 32,768 tokens, or one full context if that is longer, as long as that is no more than a quarter of the
    machine's memory.
    """
    if model.device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(model.device)
        most = max_sessions * -(-model.context_length // block_size)
        return min(most, block_count_for(model, int(free_bytes * memory_share), block_size))
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    wanted = -(-max(DEFAULT_CPU_CACHE_TOKENS, model.context_length) // block_size)
    return min(wanted, block_count_for(model, int(machine_bytes * CPU_MEMORY_SHARE), block_size))


class ModelRunner:
    """A loaded model with its cache tensors."""

    overlaps = False  # whether a step begun before the last one's end keeps the device busy

    def __init__(self, model: LoadedModel, block_count: int, block_size: int = 16) -> None:
        self.model = model
        self.block_count = block_count
        self.block_size = block_size
        self._module = model.module
        self._drawn: list[int] = []  # by each row of the last step
        self._selects_rows = "logits_to_keep" in inspect.signature(self._module.forward).parameters
        self._attach()

    def _attach(self) -> None:
        """Takes the memory of the cache and has the model's attention use it."""
        model = self.model
        self._pools = PagedPools(model.layer_shapes, self.block_count * self.block_size, model.dtype, model.device)
        attach(self._module, self._pools)

    def most_rows(self, wanted: int) -> int:
        """How many new tokens a batch may have, of those that an operator wants to allow."""
        return wanted

    def draw(self, slices: Sequence[ForwardSlice], requests: Sequence[DrawRequest]) -> list[list[Draw]]:
        """A forward, then the draws: `requests` are those of the slices that want logits, in order."""
        return draw(self.forward(slices), requests)

    def begin(self, slices: Sequence[ForwardSlice], requests: Sequence[DrawRequest]) -> Callable[[], list[list[Draw]]]:
        """`draw` in two halves: what it returns gives the draws. Steps end in the order in which they began.

        At most one more may begin before the last one's end, and only if the requests of that one are all bare: see
        `sampling.is_bare`. Its slices may hold tokens that are not drawn yet.
        """

        def end() -> list[list[Draw]]:
            draws = self.draw([self._known(part) for part in slices], requests)
            self._drawn = [drawn.token_id for rows in draws for drawn in rows]
            return draws

        return end

    def _known(self, part: ForwardSlice) -> ForwardSlice:
        if min(part.token_ids) >= 0:
            return part
        known = tuple(t if t >= 0 else self._drawn[drawn_by_row(t)] for t in part.token_ids)
        return replace(part, token_ids=known)

    @torch.inference_mode()
    def forward(self, slices: Sequence[ForwardSlice]) -> torch.Tensor:
        """Compute the new tokens, leave their keys and values in the cache, and return the logits asked for.

        Returns [sum of logits_count, vocabulary_size] in the model's dtype, on its device, in the order of the slices.
        The result is an inference tensor: change it in place only under `torch.inference_mode()`.
        """
        self._check(slices)
        token_ids = [token_id for part in slices for token_id in part.token_ids]
        positions = [at for part in slices for at in range(part.start, part.start + len(part.token_ids))]
        # [2, T], one copy to the device
        rows = torch.tensor((token_ids, positions), device=self.model.device)
        wanted = _logits_rows(slices)
        count = rows.shape[1]
        keep: int | torch.Tensor = 0  # all of them
        if len(wanted) < count:
            keep = 1 if wanted == [count - 1] else torch.tensor(wanted, dtype=torch.long, device=self.model.device)
        self._pools.batch = self._plan(slices)
        try:
            return self._logits(rows[0:1], rows[1:2], keep)
        finally:
            self._pools.batch = None

    def _logits(self, input_ids: torch.Tensor, position_ids: torch.Tensor, keep: int | torch.Tensor) -> torch.Tensor:
        """input_ids and position_ids [1, T] -> logits [rows, V]: all (0), the last (1), or of the row numbers given."""
        options = {"logits_to_keep": keep} if self._selects_rows else {}
        output = self._module(input_ids=input_ids, position_ids=position_ids, use_cache=False, **options)
        logits: torch.Tensor = output.logits[0]
        if self._selects_rows or (isinstance(keep, int) and keep == 0):
            return logits
        return logits[-1:] if isinstance(keep, int) else logits[keep]

    def _plan(self, slices: Sequence[ForwardSlice]) -> PagedBatch:
        sequences = []
        new_slots: list[int] = []
        size = self.block_size
        for part in slices:
            end = part.start + len(part.token_ids)
            sequences.append(
                PagedSequence(len(new_slots), len(part.token_ids), part.start, self._slots(part.block_table, end))
            )
            new_slots += [part.block_table[at // size] * size + at % size for at in range(part.start, end)]
        return PagedBatch(tuple(sequences), self._run_or_ids(new_slots))

    def _slots(self, block_table: tuple[int, ...], length: int) -> slice | torch.Tensor:
        """Where the first `length` tokens of a sequence lie in the pools: a slice, or ids [length]."""
        size = self.block_size
        blocks = block_table[: -(-length // size)]
        if blocks == tuple(range(blocks[0], blocks[0] + len(blocks))):
            return slice(blocks[0] * size, blocks[0] * size + length)
        # [blocks, 1] + [block_size] -> [length]
        first = torch.tensor(blocks, device=self.model.device)[:, None] * size
        return (first + torch.arange(size, device=self.model.device)).flatten()[:length]

    def _run_or_ids(self, slots: list[int]) -> slice | torch.Tensor:
        if slots == list(range(slots[0], slots[0] + len(slots))):
            return slice(slots[0], slots[0] + len(slots))
        return torch.tensor(slots, device=self.model.device)

    def _check(self, slices: Sequence[ForwardSlice]) -> None:
        assert slices, "an empty batch"
        for part in slices:
            end = part.start + len(part.token_ids)
            assert part.token_ids and 0 <= part.logits_count <= len(part.token_ids), part
            assert part.start >= 0 and end <= self.model.context_length, part
            assert end <= len(part.block_table) * self.block_size, part
            assert max(part.block_table) < self.block_count, part


def _logits_rows(slices: Sequence[ForwardSlice]) -> list[int]:
    """The rows of the batch whose logits are wanted, ascending."""
    rows: list[int] = []
    end = 0
    for part in slices:
        end += len(part.token_ids)
        rows.extend(range(end - part.logits_count, end))
    return rows
