"""Which shapes of batches are captured as graphs, and which of them a batch runs in. Policy only: no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.runtime.model_runner import ForwardSlice

VERIFYING = 8  # new tokens of a sequence up to which it counts as decoding or verifying
MAX_VERIFYING = 64  # sequences, above which only plain decoding is captured: speculation does not pay there
PREFILL_TILE = 16
PREFILL_ROWS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
PREFILL_SEQUENCES = 64
PREFILL_DRAWN = 256  # rows with logits in a step with prompts: their last ones, and those of sequences that verify
CHAIN_STEPS = (2, 4, 6, 8)
CHAIN_ROWS = (1, 2, VERIFYING)  # a sequence, on average: the last ones after n-gram matches that held are many
EXACT_ROWS = 128  # of the one shape where every step must be computed alike


@dataclass(frozen=True, slots=True)
class Shape:
    """Room for a batch.

    rows, tiles, sequences   how many; see `paged_kernel.Tiles`
    drawn                    rows whose logits are wanted
    rows_per_tile            a power of two
    """

    rows: int
    tiles: int
    sequences: int
    drawn: int
    rows_per_tile: int


class Shapes:
    """Shapes for up to `max_sequences` sequences and, with prompts among them, `max_rows` new tokens."""

    def __init__(self, max_sequences: int, max_rows: int, deterministic: bool = False) -> None:
        self.deterministic = deterministic
        self._batches = [1 << i for i in range(max(max_sequences - 1, 0).bit_length() + 1)]
        self._prefills = [rows for rows in PREFILL_ROWS if rows < max_rows] + [max_rows]
        self.most_rows = EXACT_ROWS if deterministic else max_rows
        self.steps = CHAIN_STEPS

    @property
    def captured(self) -> list[Shape]:
        """The shapes of steps to capture."""
        if self.deterministic:
            return [_EXACT]
        steps = [
            self._step(batch, each)
            for batch in self._batches
            for each in range(1, VERIFYING + 1 if batch <= MAX_VERIFYING else 2)
        ]
        return steps + [self._prefill(rows) for rows in self._prefills]

    @property
    def chained(self) -> list[Shape]:
        """The shapes that a draft's runs of steps begin with."""
        return [self._chain(batch, each) for batch in self._batches if batch <= MAX_VERIFYING for each in CHAIN_ROWS]

    def chain_steps(self, steps: int) -> int:
        """How many steps a run of graphs has that is to draw `steps` tokens."""
        return next((room for room in self.steps if room >= steps), self.steps[-1])

    def of(self, slices: Sequence[ForwardSlice]) -> Shape:
        """The smallest shape that holds the batch; one that is not captured if none does."""
        counts = [len(part.token_ids) for part in slices]
        rows, most, sequences = sum(counts), max(counts), len(slices)
        if self.deterministic:
            return _EXACT
        if most <= VERIFYING:
            batch = 1 << (sequences - 1).bit_length()
            return self._step(batch, max(-(-rows // batch), min(most, 2)))
        room = next((room for room in self._prefills if room >= rows), rows)
        shape = self._prefill(room)
        wanted = sum(part.logits_count for part in slices)
        tiles = sum(-(-count // PREFILL_TILE) for count in counts)
        fits = sequences <= shape.sequences and wanted <= shape.drawn and tiles <= shape.tiles
        return shape if fits else self.exact(slices)

    def of_chain(self, slices: Sequence[ForwardSlice]) -> Shape | None:
        """The shape that a run of steps from these begins with, whether or not it is captured. None with a prompt."""
        batch = 1 << (len(slices) - 1).bit_length()
        counts = [len(part.token_ids) for part in slices]
        if max(counts) > VERIFYING:
            return None
        each = max(-(-sum(counts) // batch), min(max(counts), 2))
        return self._chain(batch, next(room for room in CHAIN_ROWS if room >= each))

    def exact(self, slices: Sequence[ForwardSlice]) -> Shape:
        """Just the room that the batch needs."""
        counts = [len(part.token_ids) for part in slices]
        wanted = sum(part.logits_count for part in slices)
        tiles = sum(-(-count // PREFILL_TILE) for count in counts)
        return Shape(sum(counts), tiles, len(slices), max(1, wanted), PREFILL_TILE)

    def _step(self, batch: int, each: int) -> Shape:
        """Room for `batch` sequences of `each` rows on average; only plain decoding has no more than one in any."""
        return Shape(batch * each, batch, batch, batch * each, 1 if each == 1 else VERIFYING)

    def _chain(self, batch: int, each: int) -> Shape:
        """As for a step, with one row drawn for each sequence."""
        return Shape(batch * each, batch, batch, batch, 1 if each == 1 else VERIFYING)

    def _prefill(self, rows: int) -> Shape:
        tiles = rows // PREFILL_TILE + PREFILL_SEQUENCES
        return Shape(rows, tiles, PREFILL_SEQUENCES, min(rows, PREFILL_DRAWN), PREFILL_TILE)


_EXACT = Shape(EXACT_ROWS, EXACT_ROWS, EXACT_ROWS, EXACT_ROWS, PREFILL_TILE)
