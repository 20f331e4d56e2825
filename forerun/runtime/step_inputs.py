"""The inputs of a forward on a GPU: one buffer of numbers, filled on the host and copied in one piece.

A shape says how much room there is; what a batch leaves unused is padding: rows of token 0 that write into a spare
block, and tiles of no rows. So a captured graph, whose shapes and addresses are fixed, serves every batch that fits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from forerun.runtime.model_runner import ForwardSlice
from forerun.runtime.paged_kernel import Tiles
from forerun.runtime.sampling import DrawRequest
from forerun.runtime.step_shapes import Shape

SIGNED = 1 << 63


class StepInputs:
    """The buffer for one shape, and its parts as tensors."""

    def __init__(self, shape: Shape, table_width: int, block_size: int, spare: int, device: torch.device) -> None:
        """`spare` is the number of a block that belongs to no sequence."""
        self.shape = shape
        self._block_size = block_size
        self._spare = spare
        s = shape
        widths = {
            "token_ids": s.rows, "positions": s.rows, "slots": s.rows,
            "wanted": s.drawn, "seeds": s.drawn, "draw_positions": s.drawn, "temperatures": s.drawn,
            "sequence": s.tiles, "first_row": s.tiles, "count": s.tiles, "start": s.tiles,
            "tables": s.sequences * table_width,
        }  # fmt: skip
        size = sum(widths.values())
        staging = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._staging = staging
        self._buffer = torch.zeros(size, dtype=torch.int64, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        host, at = staging.numpy(), 0
        self._host: dict[str, np.ndarray] = {}
        parts: dict[str, torch.Tensor] = {}
        for name, width in widths.items():
            self._host[name], parts[name] = host[at : at + width], self._buffer[at : at + width]
            at += width
        self._host_tables = self._host["tables"].reshape(s.sequences, table_width)
        self._host_temperatures = self._host["temperatures"].view(np.float64)
        self.token_ids, self.positions = parts["token_ids"], parts["positions"]
        self.wanted, self.seeds, self.draw_positions = parts["wanted"], parts["seeds"], parts["draw_positions"]
        self.temperatures = parts["temperatures"].view(torch.float64)
        self.tables = parts["tables"].view(s.sequences, table_width)
        self.tiles = Tiles(
            parts["sequence"], parts["first_row"], parts["count"], parts["start"], self.tables, parts["slots"],
            s.rows_per_tile, block_size,
        )  # fmt: skip

    def fill(self, slices: Sequence[ForwardSlice], requests: Sequence[DrawRequest]) -> None:
        """Puts a batch that fits into the buffer. `requests` are those of the slices that want logits, in order."""
        if self._copied is not None:
            self._copied.synchronize()  # the last batch may still be on its way: a chunk of a prompt draws nothing
        host, size = self._host, self._block_size
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        wanted: list[int] = []
        tiles: list[tuple[int, int, int, int]] = []
        self._host_tables.fill(self._spare)
        step = self.shape.rows_per_tile
        for number, part in enumerate(slices):
            first, count = len(token_ids), len(part.token_ids)
            end = part.start + count
            token_ids += part.token_ids
            positions += range(part.start, end)
            slots += [part.block_table[at // size] * size + at % size for at in range(part.start, end)]
            wanted += range(first + count - part.logits_count, first + count)
            self._host_tables[number, : len(part.block_table)] = part.block_table
            tiles += [(number, first + at, min(step, count - at), part.start + at) for at in range(0, count, step)]
        _put(host["token_ids"], token_ids, 0)
        _put(host["positions"], positions, 0)
        _put(host["slots"], slots, self._spare * size)
        _put(host["wanted"], wanted, 0)
        columns = zip(*tiles, strict=True) if tiles else ((),) * 4
        for name, column in zip(("sequence", "first_row", "count", "start"), columns, strict=True):
            _put(host[name], column, 0)
        self._fill_draws(requests)
        self._buffer.copy_(self._staging, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def _fill_draws(self, requests: Sequence[DrawRequest]) -> None:
        seeds: list[int] = []
        positions: list[int] = []
        temperatures: list[float] = []
        for request in requests:
            seed = request.params.seed
            seeds += [seed - 2 * SIGNED if seed >= SIGNED else seed] * request.row_count
            positions += range(request.first_position, request.first_position + request.row_count)
            temperatures += [request.params.temperature] * request.row_count
        _put(self._host["seeds"], seeds, 0)
        _put(self._host["draw_positions"], positions, 0)
        _put(self._host_temperatures, temperatures, 0)


def _put(part: np.ndarray, values: Sequence[int] | Sequence[float], padding: int) -> None:
    part[: len(values)] = values
    part[len(values) :] = padding
