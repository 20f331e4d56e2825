"""Who owns which block of the key-value cache. Accounting only: the tensors live in `attention.PagedPools`.

A block holds `block_size` tokens of one sequence, in every layer. Blocks next to each other are handed out where
possible, because a sequence whose blocks form one run is read as a slice, without a copy; when the cache is
fragmented any free block will do. Blocks have one owner here: sharing a prefix would add a count per block.
"""

from __future__ import annotations

from forerun.runtime.sequence import Sequence


class KvCache:
    """A fixed number of blocks, and the runs of them that are free.

    Free runs are kept by both of their ends, so that taking and returning blocks looks at neighbours only. A new
    sequence starts in the middle of the largest run, which leaves room to grow for it and for its neighbour.
    """

    def __init__(self, block_count: int, block_size: int = 16) -> None:
        assert block_count > 0 and block_size > 0, (block_count, block_size)
        self.block_count = block_count
        self.block_size = block_size
        self._run_ends = {0: block_count}  # first block of a free run -> one past its last
        self._run_starts = {block_count: 0}  # the same runs, by their end
        self._owned: set[int] = set()

    @property
    def used_blocks(self) -> int:
        """Blocks that belong to a sequence."""
        return len(self._owned)

    @property
    def free_blocks(self) -> int:
        """Blocks that belong to nobody."""
        return self.block_count - len(self._owned)

    def blocks_for(self, length: int) -> int:
        """How many blocks `length` tokens need."""
        return -(-length // self.block_size)

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Make the block table cover `length` tokens. All or nothing: False, and no change, when blocks are short."""
        table = sequence.block_table
        needed = self.blocks_for(length) - len(table)
        if needed > self.free_blocks:
            return False
        while needed > 0:
            run = self._take(self._place(table[-1] if table else None, needed), needed)
            table.extend(run)
            needed -= len(run)
        return True

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Take back the blocks that hold no token before position `length`; the tokens themselves must be cut first."""
        assert sequence.computed_length <= length, (sequence, length)
        keep = self.blocks_for(length)
        self._give_back(sequence.block_table[keep:])
        del sequence.block_table[keep:]

    def release(self, sequence: Sequence) -> None:
        """Take back every block. The tokens stay, uncomputed, so the sequence can be fed again. Safe to repeat."""
        sequence.computed_length = 0
        self.truncate(sequence, 0)

    def _place(self, last_block: int | None, needed: int) -> int:
        """The first block of the next run for a sequence that ends at `last_block` and wants `needed` more."""
        if last_block is not None and last_block + 1 in self._run_ends:
            return last_block + 1
        start, end = max(self._run_ends.items(), key=lambda run: run[1] - run[0])
        if start == 0:  # nobody on the left who might want to grow into this run
            return start
        return max(start, min((start + end) // 2, end - needed))

    def _take(self, start: int, most: int) -> range:
        """Cut up to `most` blocks, from `start` on, out of the free run around `start`."""
        run_start, run_end = self._run_around(start)
        taken = range(start, min(start + most, run_end))
        self._remove_run(run_start, run_end)
        self._add_run(run_start, taken.start)
        self._add_run(taken.stop, run_end)
        assert self._owned.isdisjoint(taken), taken
        self._owned.update(taken)
        return taken

    def _give_back(self, blocks: list[int]) -> None:
        for block in blocks:
            assert block in self._owned, f"block {block} is already free"
            self._owned.remove(block)
            start = self._run_starts.get(block, block)  # free neighbours on either side join
            end = self._run_ends.get(block + 1, block + 1)
            self._remove_run(start, block)
            self._remove_run(block + 1, end)
            self._add_run(start, end)

    def _run_around(self, block: int) -> tuple[int, int]:
        for start, end in self._run_ends.items():
            if start <= block < end:
                return start, end
        raise AssertionError(f"block {block} is not free")

    def _add_run(self, start: int, end: int) -> None:
        if start < end:
            self._run_ends[start] = end
            self._run_starts[end] = start

    def _remove_run(self, start: int, end: int) -> None:
        if start < end:
            del self._run_ends[start]
            del self._run_starts[end]
