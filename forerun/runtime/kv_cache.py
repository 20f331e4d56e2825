"""Who holds which block of the key-value cache. Accounting only: the tensors live in `attention.PagedPools`.

A block holds `block_size` tokens of one sequence, in every layer. Blocks next to each other are handed out where
possible, because a sequence whose blocks form one run is read as a slice, without a copy; when the cache is
fragmented any free block will do.

With `reuse`, sequences that begin with the same tokens hold the same blocks. A full block of computed, final tokens is
registered; from then on it is never written, and a block that no sequence holds any more keeps its contents until its
place is needed. Whoever holds a registered block holds all those before it, too, so of a prefix the end goes first.
"""

from __future__ import annotations

from collections import OrderedDict

from forerun.runtime.prefix_tree import PrefixTree
from forerun.runtime.sequence import Sequence


class KvCache:
    """A fixed number of blocks, how many sequences hold each, and the runs of them that are free.

    Free runs are kept by both of their ends, so that taking and returning blocks looks at neighbours only. A new
    sequence starts in the middle of the largest run, which leaves room to grow for it and for its neighbour.
    """

    def __init__(self, block_count: int, block_size: int = 16, reuse: bool = False) -> None:
        assert block_count > 0 and block_size > 0, (block_count, block_size)
        self.block_count = block_count
        self.block_size = block_size
        self.reuse = reuse
        self.reused_tokens = 0  # found in the cache instead of being computed, since the start
        self._run_ends = {0: block_count}  # first block of a free run -> one past its last
        self._run_starts = {block_count: 0}  # the same runs, by their end
        self._holders: dict[int, int] = {}  # block -> how many block tables it is in; at least 1
        self._registered = PrefixTree()
        self._idle: OrderedDict[int, None] = OrderedDict()  # registered and held by nobody, the longest unused first

    @property
    def used_blocks(self) -> int:
        """Blocks that belong to a sequence, or to several."""
        return len(self._holders)

    @property
    def free_blocks(self) -> int:
        """Blocks that belong to nobody, those with contents that may be used again among them."""
        return self.block_count - len(self._holders)

    def blocks_for(self, length: int) -> int:
        """How many blocks `length` tokens need."""
        return -(-length // self.block_size)

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Make the block table cover `length` tokens. All or nothing: False, and no change, when blocks are short."""
        table = sequence.block_table
        needed = self.blocks_for(length) - len(table)
        if needed > self.free_blocks:
            return False
        self._evict(needed - (self.free_blocks - len(self._idle)))
        while needed > 0:
            run = self._take(self._place(table[-1] if table else None, needed), needed)
            table.extend(run)
            needed -= len(run)
        return True

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Take back the blocks that hold no token before position `length`; the tokens themselves must be cut first.

        A registered block goes even if it holds a few such tokens, since what follows must not be written into it.
        These tokens then count as uncomputed.
        """
        assert sequence.computed_length <= length, (sequence, length)
        table = sequence.block_table
        keep = self.blocks_for(length)
        whole = sequence.computed_length >= keep * self.block_size
        if not whole and keep <= len(table) and table[keep - 1] in self._registered:
            keep -= 1
            sequence.computed_length = keep * self.block_size
        self._give_back(table[keep:])
        del table[keep:]

    def release(self, sequence: Sequence) -> None:
        """Take back every block. The tokens stay, uncomputed, so the sequence can be fed again. Safe to repeat."""
        sequence.computed_length = 0
        self.truncate(sequence, 0)

    def rewind(self, sequence: Sequence) -> None:
        """Count the last token as uncomputed if all are computed, so that it can be fed for its logits."""
        if sequence.pending_length == 0:
            sequence.computed_length -= 1
            self.truncate(sequence, len(sequence))

    # Reuse

    def attach_prefix(self, sequence: Sequence) -> int:
        """Put registered blocks where they hold the next tokens of a sequence; returns how many need no computing.

        For a sequence about to be fed, whether it is new, was released, or waits halfway while others compute the same
        tokens. The last token is always left: it must be fed to get logits. Nothing is taken of a sequence that does
        not fit as a whole, so that those waiting for room hold none.
        """
        table, size = sequence.block_table, self.block_size
        start, end = sequence.computed_length // size, (len(sequence) - 1) // size
        if not self.reuse or start >= end:
            return 0
        found = self._find(sequence, start, end)
        idle = sum(block in self._idle for block in found)  # free until now
        missing = self.blocks_for(len(sequence)) - max(len(table), start + len(found))
        if not found or idle + missing > self.free_blocks:
            return 0
        for block in found:
            self._hold(block)
        self._give_back(table[start : start + len(found)])
        table[start : start + len(found)] = found
        saved = (start + len(found)) * size - sequence.computed_length
        sequence.mark_computed(sequence.computed_length + saved)
        self.reused_tokens += saved
        return saved

    def register(self, sequence: Sequence, length: int) -> None:
        """Let others find the full blocks among the first `length` tokens, which are final, as far as computed.

        Where another sequence computed the same before, its block replaces the one of this sequence. The cost is that
        of the blocks that have filled up since the last time. Not while a step runs that reads this sequence.
        """
        if not self.reuse:
            return
        table, size = sequence.block_table, self.block_size
        end = min(length, sequence.computed_length) // size
        start = end
        while start > 0 and table[start - 1] not in self._registered:
            start -= 1
        for i in range(start, end):
            before = table[i - 1] if i else None
            token_ids = tuple(sequence.token_ids[i * size : (i + 1) * size])
            known = self._registered.find(before, token_ids)
            if known is None:
                self._registered.add(before, token_ids, table[i])
            else:
                self._hold(known)
                self._give_back([table[i]])
                table[i] = known

    def _find(self, sequence: Sequence, start: int, end: int) -> list[int]:
        """The registered blocks for the sequence's blocks `start` to `end`, up to the first that is missing."""
        size = self.block_size
        before = sequence.block_table[start - 1] if start else None
        found: list[int] = []
        for at in range(start * size, end * size, size):
            before = self._registered.find(before, tuple(sequence.token_ids[at : at + size]))
            if before is None:
                break
            found.append(before)
        return found

    def _hold(self, block: int) -> None:
        """One more table has this registered block."""
        self._idle.pop(block, None)
        self._holders[block] = self._holders.get(block, 0) + 1

    def _evict(self, count: int) -> None:
        """Forget the contents of the blocks that were not used for the longest time."""
        for _ in range(count):
            block, _ = self._idle.popitem(last=False)
            self._registered.remove(block)
            self._free(block)

    # Blocks

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
        assert self._holders.keys().isdisjoint(taken), taken
        self._holders.update(dict.fromkeys(taken, 1))
        return taken

    def _give_back(self, blocks: list[int]) -> None:
        """One table less has these; the last ones first, so that of a prefix the end is the longest unused."""
        for block in reversed(blocks):
            assert block in self._holders, f"block {block} is already free"
            if self._holders[block] > 1:
                self._holders[block] -= 1
                continue
            del self._holders[block]
            if block in self._registered:
                self._idle[block] = None
            else:
                self._free(block)

    def _free(self, block: int) -> None:
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
