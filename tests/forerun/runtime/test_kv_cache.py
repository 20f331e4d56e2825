"""Block accounting: nothing is owned twice, nothing is lost, and sequences stay in one run while they can."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.runtime.kv_cache import KvCache
from forerun.runtime.sequence import Sequence

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["grow", "cut", "release"]), st.integers(0, 5), st.integers(0, 90)), max_size=60
)


def is_one_run(sequence: Sequence) -> bool:
    table = sequence.block_table
    return table == list(range(table[0], table[0] + len(table)))


def check(cache: KvCache, sequences: list[Sequence]) -> None:
    owned = [block for sequence in sequences for block in sequence.block_table]
    assert len(owned) == len(set(owned)), "a block has two owners"
    assert all(0 <= block < cache.block_count for block in owned)
    assert cache.used_blocks == len(owned)
    assert cache.free_blocks + cache.used_blocks == cache.block_count
    free = [block for start, end in cache._run_ends.items() for block in range(start, end)]
    assert sorted(free + owned) == list(range(cache.block_count))
    assert all(start not in cache._run_starts for start in cache._run_ends), "neighbouring free runs were not joined"


@settings(max_examples=200, deadline=None)
@given(block_count=st.integers(1, 24), block_size=st.integers(1, 8), operations=OPERATIONS)
def test_blocks_have_one_owner_and_none_is_lost(
    block_count: int, block_size: int, operations: list[tuple[str, int, int]]
) -> None:
    cache = KvCache(block_count, block_size)
    sequences = [Sequence() for _ in range(6)]
    for operation, index, amount in operations:
        sequence = sequences[index]
        if operation == "grow":
            before = list(sequence.block_table)
            free = cache.free_blocks
            granted = cache.reserve(sequence, amount)
            assert granted == (cache.blocks_for(amount) - len(before) <= free)
            assert sequence.block_table[: len(before)] == before
            assert len(sequence.block_table) == (max(len(before), cache.blocks_for(amount)) if granted else len(before))
        elif operation == "cut":
            cache.truncate(sequence, amount)
            assert len(sequence.block_table) <= cache.blocks_for(amount)
        else:
            cache.release(sequence)
            assert sequence.block_table == []
        check(cache, sequences)
    for sequence in sequences:
        cache.release(sequence)
    assert cache.free_blocks == block_count
    assert cache._run_ends == {0: block_count}


def test_a_reservation_that_does_not_fit_changes_nothing() -> None:
    cache = KvCache(block_count=4, block_size=16)
    first, second = Sequence(), Sequence()
    assert cache.reserve(first, 33)
    assert not cache.reserve(second, 17)
    assert (second.block_table, cache.free_blocks) == ([], 1)
    assert cache.reserve(second, 16)
    assert cache.free_blocks == 0


def test_sequences_that_grow_side_by_side_stay_in_one_run() -> None:
    cache = KvCache(block_count=64, block_size=16)
    sequences = [Sequence() for _ in range(4)]
    for length in range(1, 200):
        assert all(cache.reserve(sequence, length) for sequence in sequences)
    assert all(is_one_run(sequence) for sequence in sequences)


def test_a_rolled_back_sequence_grows_again_into_the_same_blocks() -> None:
    cache = KvCache(block_count=16, block_size=16)
    sequence = Sequence(range(100))
    assert cache.reserve(sequence, 100)
    table = list(sequence.block_table)
    sequence.mark_computed(100)
    sequence.truncate(40)
    cache.truncate(sequence, 40)
    assert (sequence.computed_length, len(sequence.block_table)) == (40, 3)
    assert cache.reserve(sequence, 100)
    assert sequence.block_table == table


def test_a_fragmented_cache_still_gives_its_last_block() -> None:
    cache = KvCache(block_count=8, block_size=1)
    singles = [Sequence() for _ in range(8)]
    assert all(cache.reserve(single, 1) for single in singles)
    for single in singles:
        if single.block_table[0] % 2:
            cache.release(single)
    scattered = Sequence()
    assert cache.reserve(scattered, 4)
    assert sorted(scattered.block_table) == [1, 3, 5, 7]
    assert cache.free_blocks == 0


def test_release_keeps_the_tokens_and_can_be_repeated() -> None:
    cache = KvCache(block_count=4, block_size=16)
    sequence = Sequence(range(20))
    assert cache.reserve(sequence, 20)
    sequence.mark_computed(20)
    cache.release(sequence)
    cache.release(sequence)
    assert (len(sequence), sequence.pending_length, cache.used_blocks) == (20, 20, 0)


def test_a_double_free_is_caught() -> None:
    cache = KvCache(block_count=4, block_size=16)
    sequence = Sequence()
    assert cache.reserve(sequence, 20)
    stale = Sequence()
    stale.block_table = list(sequence.block_table)
    cache.release(sequence)
    with pytest.raises(AssertionError, match="already free"):
        cache.release(stale)


def test_blocks_of_computed_tokens_cannot_be_taken() -> None:
    cache = KvCache(block_count=4, block_size=16)
    sequence = Sequence(range(20))
    assert cache.reserve(sequence, 20)
    sequence.mark_computed(20)
    with pytest.raises(AssertionError):
        cache.truncate(sequence, 10)
