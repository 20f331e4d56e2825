"""Sequences that begin alike hold the same blocks, nobody writes into one that others read, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.runtime.identity import choose_reuse
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.prefix_tree import PrefixTree
from forerun.runtime.sequence import Sequence

SIZE = 4


class Written:
    """A cache, its sequences, and what stands in each slot: a token and all before it, as its keys depend on them."""

    def __init__(self, block_count: int = 16, block_size: int = SIZE) -> None:
        self.cache = KvCache(block_count, block_size, reuse=True)
        self.sequences: list[Sequence] = []
        self._slots: dict[int, tuple[int, ...]] = {}

    def open(self, token_ids: Iterable[int]) -> Sequence:
        sequence = Sequence(token_ids)
        self.sequences.append(sequence)
        return sequence

    def feed(self, sequence: Sequence, most: int = 1000, final: int = 1000) -> int | None:
        """What a service does for a step: find, reserve, compute, register. The number of tokens computed, if any."""
        found = self.cache.attach_prefix(sequence)
        assert found == 0 or sequence.pending_length > 0, "the last token must be fed"
        if not self.cache.reserve(sequence, len(sequence)):
            return None
        start, end = sequence.computed_length, min(len(sequence), sequence.computed_length + most)
        for position in range(start, end):
            self._slots[self._slot(sequence, position)] = tuple(sequence.token_ids[: position + 1])
        sequence.mark_computed(end)
        self.cache.register(sequence, min(final, len(sequence)))
        self.check()
        return end - start

    def cut(self, sequence: Sequence, length: int) -> None:
        sequence.truncate(length)
        self.cache.truncate(sequence, length)
        self.check()

    def release(self, sequence: Sequence) -> None:
        self.cache.release(sequence)
        self.check()

    def _slot(self, sequence: Sequence, position: int) -> int:
        size = self.cache.block_size
        return sequence.block_table[position // size] * size + position % size

    def check(self) -> None:
        cache = self.cache
        held = Counter(block for sequence in self.sequences for block in sequence.block_table)
        assert cache._holders == held
        free = [block for start, end in cache._run_ends.items() for block in range(start, end)]
        assert sorted([*free, *cache._idle, *held]) == list(range(cache.block_count)), "free, idle or held, and once"
        assert (cache.used_blocks, cache.free_blocks) == (len(held), cache.block_count - len(held))
        nodes = cache._registered._nodes
        assert cache._idle.keys() <= nodes.keys() <= cache._idle.keys() | held.keys()
        order = {block: place for place, block in enumerate(cache._idle)}
        for block, node in nodes.items():
            assert node.parent is cache._registered._root or nodes[node.parent.block] is node.parent
            assert all(held[block] >= held[child.block] for child in node.children.values())
            assert block not in order or all(order[child.block] < order[block] for child in node.children.values())
        for sequence in self.sequences:
            self._check_sequence(sequence, held)

    def _check_sequence(self, sequence: Sequence, held: Counter[int]) -> None:
        size = self.cache.block_size
        for position in range(sequence.computed_length):
            assert self._slots[self._slot(sequence, position)] == tuple(sequence.token_ids[: position + 1])
        for index, block in enumerate(sequence.block_table):
            if held[block] > 1 or block in self.cache._registered:
                assert (index + 1) * size <= sequence.computed_length, "what others may read would be written"


# The cache


def test_a_second_sequence_takes_the_full_blocks_of_the_first() -> None:
    made = Written()
    first, second = made.open(range(14)), made.open([*range(12), 99, 98])
    assert made.feed(first) == 14
    assert made.feed(second) == 2
    assert second.block_table[:3] == first.block_table[:3] and second.block_table[3] != first.block_table[3]
    assert (made.cache.used_blocks, made.cache.reused_tokens) == (5, 12)


def test_the_last_token_is_always_left_to_be_fed() -> None:
    made = Written()
    made.feed(made.open(range(12)))
    assert made.feed(made.open(range(12))) == 4
    assert made.feed(made.open(range(13))) == 1


def test_nothing_is_shared_by_default() -> None:
    cache, first = KvCache(8, SIZE), Sequence(range(9))
    assert cache.reserve(first, 9)
    first.mark_computed(9)
    cache.register(first, 9)
    cache.release(first)
    assert cache.attach_prefix(Sequence(range(9))) == 0


def test_the_same_tokens_after_others_are_not_the_same() -> None:
    made = Written()
    made.feed(made.open([1, 1, 1, 1, 5, 5, 5, 5, 0]))
    assert made.feed(made.open([2, 2, 2, 2, 5, 5, 5, 5, 0])) == 9
    assert made.feed(made.open([5, 5, 5, 5, 0])) == 5


def test_a_released_sequence_finds_its_own_blocks_again() -> None:
    made = Written()
    sequence = made.open(range(15))
    made.feed(sequence)
    made.release(sequence)
    assert (made.cache.used_blocks, made.cache.free_blocks) == (0, 16)
    assert made.feed(sequence) == 3


def test_only_final_tokens_are_registered() -> None:
    made = Written()
    made.feed(made.open(range(12)), final=7)
    assert made.feed(made.open(range(12))) == 8


def test_what_two_computed_at_once_is_kept_once() -> None:
    made = Written()
    first, second = made.open([*range(8), 50]), made.open([*range(8), 60])
    for sequence in (first, second):
        made.feed(sequence, most=2)
    assert made.cache.used_blocks == 6
    made.feed(first)
    assert made.feed(second) == 1, "it had begun, and goes on where the other one is"
    assert made.cache.used_blocks == 4
    third = made.open([*range(8), 70, 71, 72, 73, 74])
    fourth = made.open([*range(8), 70, 71, 72, 73, 75])
    assert made.cache.reserve(third, 13) and made.cache.reserve(fourth, 13)
    assert (made.feed(third), made.feed(fourth)) == (5, 1)
    assert third.block_table[:3] == fourth.block_table[:3]


def test_two_that_fill_the_same_block_in_one_step_end_with_one() -> None:
    made = Written()
    both = [made.open(range(9)), made.open(range(9))]
    for sequence in both:
        assert made.cache.reserve(sequence, 9)
        for position in range(9):
            made._slots[made._slot(sequence, position)] = tuple(range(position + 1))
        sequence.mark_computed(9)
    for sequence in both:
        made.cache.register(sequence, 9)
        made.check()
    assert both[0].block_table[:2] == both[1].block_table[:2]
    assert made.cache.used_blocks == 4


def test_what_was_used_last_is_kept_longest_and_ends_go_before_beginnings() -> None:
    made = Written(block_count=6)
    old, new = made.open([1] * 8 + [0]), made.open([2] * 8 + [0])
    for sequence in (old, new):
        made.feed(sequence)
        made.release(sequence)
    for token_ids, computed in (
        (range(100, 111), 11),
        ([2] * 8 + [5], 1),
    ):  # the first takes two free blocks and one more
        sequence = made.open(token_ids)
        assert made.feed(sequence) == computed
        made.release(sequence)
    assert made.feed(made.open([1] * 8 + [5])) == 5, "of the older one the end is gone"


def test_a_sequence_that_does_not_fit_takes_nothing() -> None:
    made = Written(block_count=6)
    first = made.open(range(9))
    made.feed(first)
    assert made.feed(made.open([*range(8), *range(50, 66)])) is None
    assert made.cache.used_blocks == 3
    made.release(first)
    assert made.feed(made.open([*range(8), *range(50, 66)])) == 16


@pytest.mark.parametrize("shared", [False, True])
def test_a_cut_into_a_registered_block_gives_it_back_and_computes_again(shared: bool) -> None:
    made = Written()
    sequence = made.open(range(14))
    made.feed(sequence)
    if shared:
        made.feed(made.open(range(14)))
    made.cut(sequence, 10)
    assert (sequence.computed_length, len(sequence.block_table)) == (8, 2)
    sequence.append([70, 71])
    assert made.feed(sequence) == 4
    assert made.feed(made.open(range(14))) == 2, "what was registered is still there"


def test_a_cut_between_blocks_keeps_what_is_before_it() -> None:
    made = Written()
    sequence = made.open(range(14))
    made.feed(sequence)
    made.cut(sequence, 8)
    assert (sequence.computed_length, len(sequence.block_table)) == (8, 2)


@pytest.mark.parametrize(("length", "again"), [(14, 1), (12, 4)], ids=["a block of its own", "a registered block"])
def test_what_is_wholly_computed_can_be_fed_once_more(length: int, again: int) -> None:
    made = Written()
    sequence = made.open(range(length))
    made.feed(sequence)
    made.cache.rewind(sequence)
    assert sequence.pending_length == again
    assert made.feed(sequence) == again
    made.cache.rewind(made.open(range(3)))
    assert made.sequences[-1].pending_length == 3


def test_registering_costs_no_more_than_the_blocks_that_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, sequence = KvCache(64, SIZE, reuse=True), Sequence([7])
    looked: list[int] = []
    find = PrefixTree.find
    monkeypatch.setattr(PrefixTree, "find", lambda *args: (looked.append(1), find(*args))[1])
    for token in range(200):
        assert cache.attach_prefix(sequence) == 0 and cache.reserve(sequence, len(sequence))
        sequence.mark_computed(len(sequence))
        cache.register(sequence, len(sequence))
        sequence.append([token])
    assert len(looked) == 200 // SIZE


def test_a_gpu_reuses_unless_told_not_to_and_a_cpu_only_if_told() -> None:
    torch = pytest.importorskip("torch")
    chosen = {
        (on, kind): choose_reuse(on, torch.device(kind)) for on in ("auto", "on", "off") for kind in ("cpu", "cuda")
    }
    assert [key for key, reuse in chosen.items() if reuse] == [("auto", "cuda"), ("on", "cpu"), ("on", "cuda")]


# All of it

PREFIXES = ([1] * 30, [1] * 9 + [2] * 30, [2] * 30, [1, 2] * 15)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["open", "feed", "feed", "feed", "append", "append", "cut", "rewind", "release"]),
        st.integers(0, 5),
        st.integers(0, 40),
        st.integers(0, 40),
    ),
    max_size=80,
)


@settings(max_examples=400, deadline=None)
@given(block_count=st.integers(1, 24), block_size=st.integers(1, 5), operations=OPERATIONS)
def test_whatever_sequences_do_the_cache_holds_their_tokens(
    block_count: int, block_size: int, operations: list[tuple[str, int, int, int]]
) -> None:
    made = Written(block_count, block_size)
    sequences = [made.open([1]) for _ in range(6)]
    for operation, index, amount, other in operations:
        sequence = sequences[index]
        if operation == "open":
            made.release(sequence)
            sequence.truncate(0)
            sequence.append(PREFIXES[other % len(PREFIXES)][: 1 + amount])
        elif operation == "feed":
            free = made.cache.free_blocks + len(sequence.block_table)
            done = made.feed(sequence, most=1 + amount, final=other)
            assert done is not None or made.cache.blocks_for(len(sequence)) > free, "it would have fitted"
        elif operation == "append":
            sequence.append([1 + other % 2] * (1 + amount % 5))
        elif operation == "cut":
            made.cut(sequence, min(len(sequence), max(1, amount)))
        elif operation == "rewind":
            made.cache.rewind(sequence)
            assert sequence.pending_length > 0
        else:
            made.release(sequence)
        made.check()
    for sequence in sequences:
        made.release(sequence)
    assert made.cache.free_blocks == block_count
    everything = made.open(range(1000, 1000 + block_count * block_size))
    assert made.feed(everything) == len(everything)
    assert len(made.cache._registered) == block_count, "the old contents made room for the new"
