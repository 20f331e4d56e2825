"""Which captured shape a batch runs in: room enough for it, no more than twice as much, and never a wrong one."""

from __future__ import annotations

import random

import pytest

from forerun.runtime.model_runner import ForwardSlice
from forerun.runtime.step_shapes import PREFILL_TILE, VERIFYING, Shape, Shapes


def part(tokens: int, logits: int = 1) -> ForwardSlice:
    return ForwardSlice((1,) * tokens, 0, (0,), logits)


def holds(shape: Shape, slices: list[ForwardSlice]) -> bool:
    """Whether the batch fits, tiles and all."""
    counts = [len(each.token_ids) for each in slices]
    tiles = sum(-(-count // shape.rows_per_tile) for count in counts)
    return (
        sum(counts) <= shape.rows
        and tiles <= shape.tiles
        and len(slices) <= shape.sequences
        and sum(each.logits_count for each in slices) <= shape.drawn
    )


def batches(largest: int) -> list[list[ForwardSlice]]:
    """Random ones, of decoding, verifying, prompts, and all of them mixed; seed 0."""
    generator = random.Random(0)
    found = []
    for _ in range(2000):
        kinds = generator.choice([(1,), (1, 5), (1, 2, 8), (1, 5, 9, 40), (200, 3)])
        slices = []
        for _ in range(generator.randint(1, 24)):
            count = generator.choice(kinds)
            slices.append(part(count, generator.randint(0, min(count, VERIFYING))))
        if sum(len(each.token_ids) for each in slices) <= largest:
            found.append(slices)
    return found


def test_every_batch_fits_its_shape() -> None:
    shapes = Shapes(64, 512)
    captured = set(shapes.captured)
    for slices in batches(512):
        shape = shapes.of(slices)
        assert holds(shape, slices), (shape, [len(each.token_ids) for each in slices])
        if all(len(each.token_ids) <= VERIFYING for each in slices):
            assert shape in captured, slices


def test_padding_at_most_doubles_a_batch() -> None:
    shapes = Shapes(64, 512)
    for sequences in range(1, 65):
        for tokens in range(1, VERIFYING + 1):
            shape = shapes.of([part(tokens)] * sequences)
            assert shape.rows < 2 * sequences * tokens, (sequences, tokens, shape)


def test_every_shape_is_captured_once() -> None:
    for shapes in (Shapes(1, 64), Shapes(16, 512), Shapes(100, 2048), Shapes(8, 128, deterministic=True)):
        assert len(set(shapes.captured)) == len(shapes.captured)
        assert len(set(shapes.chained)) == len(shapes.chained)


def test_a_run_of_steps_begins_with_no_prompt_among_its_slices() -> None:
    """A long slice needs several tiles: seventeen of them once went into a shape of sixteen."""
    shapes = Shapes(64, 512)
    chained = set(shapes.chained)
    assert shapes.of_chain([part(VERIFYING + 1)] + [part(1)] * 15) is None
    for slices in batches(512):
        shape = shapes.of_chain(slices)
        if shape in chained:
            assert shape is not None and holds(shape, [part(len(each.token_ids)) for each in slices])


@pytest.mark.parametrize(("wanted", "drawn"), [(1, 2), (2, 2), (3, 4), (4, 4), (7, 8), (8, 8), (9, 8)])
def test_a_run_of_steps_is_the_shortest_that_draws_enough(wanted: int, drawn: int) -> None:
    assert Shapes(4, 64).chain_steps(wanted) == drawn


def test_in_the_exact_mode_there_is_one_shape() -> None:
    shapes = Shapes(64, 2048, deterministic=True)
    (shape,) = shapes.captured
    assert shapes.most_rows == shape.rows
    for slices in batches(shape.rows):
        assert shapes.of(slices) == shape
        assert holds(shape, slices) or len(slices) > shape.sequences
    assert shape.rows_per_tile == PREFILL_TILE
