"""The model runner of a GPU: layers compiled, whole steps captured as CUDA graphs, tokens drawn inside them.

A step of a batch that fits a captured shape is one copy to the device, one launch and one small copy back. A draft's
whole run of steps is one graph too: each step feeds what the one before drew. What fits no shape runs as it is.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from forerun.errors import Internal
from forerun.logs import event
from forerun.runtime.attention import attach_layers
from forerun.runtime.draw_kernel import draw_rows, take_drawn
from forerun.runtime.model import LoadedModel
from forerun.runtime.model_runner import ForwardSlice, ModelRunner
from forerun.runtime.paged_kernel import Tiles
from forerun.runtime.sampling import Draw, DrawRequest, draw, draws_of, is_bare, is_simple
from forerun.runtime.step_inputs import StepInputs
from forerun.runtime.step_shapes import Shape, Shapes
from forerun.runtime.tiled_attention import TiledLayer, batch_of

logger = logging.getLogger(__name__)

KEPT_ROWS = 4096  # so many rows of a step are kept on the device for the next; larger steps are never followed so
SPARE_TOKENS = 64  # of a table's width, so that a draft may end beyond what its sequence has blocks for

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Of a step: logits [drawn, V], and what `draw_rows` made of them [drawn, 2]. Valid until the next step."""

    logits: torch.Tensor
    drawn: torch.Tensor


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph with its inputs and its outputs."""

    inputs: StepInputs
    graph: torch.cuda.CUDAGraph
    outputs: Outputs | torch.Tensor


class GraphRunner(ModelRunner):
    """A loaded model on a GPU with its cache. Steps as they come until `capture` was called."""

    overlaps = True

    def __init__(self, model: LoadedModel, block_count: int, block_size: int, shapes: Shapes) -> None:
        self._shapes = shapes
        self._steps: dict[Shape, Captured] = {}
        self._chains: dict[tuple[Shape, int], Captured] = {}
        self._kept = torch.zeros(KEPT_ROWS, dtype=torch.int64, device=model.device)
        self._landing = Landing(model.device)
        self._table_width = -(-(model.context_length + SPARE_TOKENS) // block_size)
        super().__init__(model, block_count, block_size)

    def _attach(self) -> None:
        slots = (self.block_count + 1) * self.block_size  # the last block is for padding
        dtype, device = self.model.dtype, self.model.device
        layers = []
        for shape in self.model.layer_shapes:
            keys = torch.empty(shape.kv_heads, slots, shape.key_width, dtype=dtype, device=device)
            values = torch.empty(shape.kv_heads, slots, shape.value_width, dtype=dtype, device=device)
            for pool in (keys, values):
                pool[:, -self.block_size :].zero_()
            layers.append(TiledLayer(keys, values))
        attach_layers(self._module, layers)

    def most_rows(self, wanted: int) -> int:
        return min(wanted, self._shapes.most_rows)

    def _on_device(self) -> AbstractContextManager[object]:
        """Kernels are launched on a thread's own current device. A CPU stands in where kernels are interpreted."""
        device = self.model.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    # Steps

    @torch.inference_mode()
    def forward(self, slices: Sequence[ForwardSlice]) -> torch.Tensor:
        wanted = sum(part.logits_count for part in slices)
        with self._on_device():
            return self._run(slices, ()).logits[:wanted].clone()

    def draw(self, slices: Sequence[ForwardSlice], requests: Sequence[DrawRequest]) -> list[list[Draw]]:
        return self.begin(slices, requests)()

    @torch.inference_mode()
    def begin(self, slices: Sequence[ForwardSlice], requests: Sequence[DrawRequest]) -> Callable[[], list[list[Draw]]]:
        count = sum(request.row_count for request in requests)
        with self._on_device():
            outputs = self._run(slices, requests)
            if count and all(map(is_bare, requests)):
                landed = self._landing.receive(outputs.drawn[:count])
                return lambda: draws_of(landed(), requests)

        def end() -> list[list[Draw]]:
            with self._on_device():
                return draw(outputs.logits[:count], requests, outputs.drawn[:count]) if count else []

        return end

    def _run(self, slices: Sequence[ForwardSlice], requests: Sequence[DrawRequest]) -> Outputs:
        self._check(slices)
        captured = self.captured_for(slices)
        if captured is not None:
            captured.inputs.fill(slices, requests)
            captured.graph.replay()
            assert isinstance(captured.outputs, Outputs)
            return captured.outputs
        inputs = self._inputs(self._shapes.exact(slices))
        inputs.fill(slices, requests)
        return self._compute(inputs)

    def captured_for(self, slices: Sequence[ForwardSlice]) -> Captured | None:
        """The graph that a step of these runs in."""
        return self._steps.get(self._shapes.of(slices))

    def chain_for(self, slices: Sequence[ForwardSlice], steps: int) -> Captured | None:
        """The graph that a run of steps from these is."""
        shape = self._shapes.of_chain(slices)
        return self._chains.get((shape, self._shapes.chain_steps(steps))) if shape is not None else None

    def _inputs(self, shape: Shape) -> StepInputs:
        return StepInputs(shape, self._table_width, self.block_size, self.block_count, self.model.device)

    def _compute(self, inputs: StepInputs) -> Outputs:
        token_ids = take_drawn(inputs.token_ids, self._kept)
        with batch_of(inputs.tiles):
            logits = self._logits(token_ids[None], inputs.positions[None], inputs.wanted)
        kept = self._kept if logits.shape[0] <= KEPT_ROWS else None
        return Outputs(logits, draw_rows(logits, inputs.seeds, inputs.draw_positions, inputs.temperatures, kept))

    # A draft's steps

    @torch.inference_mode()
    def chain(
        self, slices: Sequence[ForwardSlice], requests: Sequence[DrawRequest], most: Sequence[int]
    ) -> list[list[tuple[int, float]]] | None:
        """Feeds the slices, then each drawn token, up to `most` tokens for each slice, or as many as a graph has steps.

        Returns tokens and the model's own probabilities of them, for each slice; None if no graph fits: then not a
        thing was computed. Raises Internal for logits that are no numbers. A slice that wants fewer steps than others
        goes on beside them, in the spare block if its own are full, and what that draws is dropped unseen.
        """
        if not all(part.logits_count == 1 for part in slices) or not all(map(is_simple, requests)):
            return None
        captured = self.chain_for(slices, max(most))
        if captured is None:
            return None
        self._check(slices)
        with self._on_device():
            captured.inputs.fill(slices, requests)
            captured.graph.replay()
            assert isinstance(captured.outputs, torch.Tensor)
            drawn: list[list[list[float]]] = captured.outputs[: len(slices)].tolist()
        wanted = [rows[:count] for rows, count in zip(drawn, most, strict=True)]
        if any(token_id < 0 for rows in wanted for token_id, _ in rows):
            raise Internal("the model's logits hold NaN or infinity; nothing was drawn")
        return [[(int(token_id), likely) for token_id, likely in rows] for rows in wanted]

    def _compute_chain(self, inputs: StepInputs, steps: int) -> torch.Tensor:
        """[sequences, steps, 2]; each sequence has one tile and one drawn row."""
        drawn = self._compute(inputs).drawn
        found = [drawn]
        positions, size = inputs.draw_positions, self.block_size
        number = torch.arange(inputs.shape.sequences, device=self.model.device)
        count = inputs.tiles.count.clamp(max=1)
        for _ in range(steps - 1):
            token_ids = drawn[:, 0].long().clamp(min=0)
            blocks = inputs.tables.gather(1, (positions // size)[:, None])[:, 0]
            slots = blocks * size + positions % size
            tiles = Tiles(number, number, count, positions, inputs.tables, slots, 1, size)
            with batch_of(tiles):
                logits = self._logits(token_ids[None], positions[None], number)
            positions = positions + 1
            drawn = draw_rows(logits, inputs.seeds, positions, inputs.temperatures)
            found.append(drawn)
        return torch.stack(found, 1)

    # Capture

    @torch.inference_mode()
    def capture(self, chains: bool = False, progress: Progress | None = None) -> None:
        """Captures a graph for every shape, and with `chains` those of a draft. Call it before anything is served."""
        started = time.perf_counter()
        chained = list(itertools.product(self._shapes.chained, self._shapes.steps)) if chains else []
        total = len(self._shapes.captured) + len(chained)
        done = itertools.count(1)
        with self._on_device():
            captures = Captures()
            for shape in self._shapes.captured:
                inputs = self._inputs(shape)
                self._steps[shape] = captures.take(inputs, lambda inputs=inputs: self._compute(inputs))  # type: ignore[misc]
                if progress:
                    progress(next(done), total)
            for shape, steps in chained:
                inputs = self._inputs(shape)
                self._chains[shape, steps] = captures.take(
                    inputs,
                    lambda inputs=inputs, steps=steps: self._compute_chain(inputs, steps),  # type: ignore[misc]
                )
                if progress:
                    progress(next(done), total)
        event(logger, "graphs_captured", graphs=total, seconds=round(time.perf_counter() - started, 1))


class Landing:
    """Where small results of steps arrive on the host: places for two, as one step may begin before the last's end."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._places = [torch.empty(KEPT_ROWS, 2, pin_memory=on_gpu) for _ in range(2)]
        self._events = [torch.cuda.Event() if on_gpu else None for _ in range(2)]  # type: ignore[no-untyped-call]
        self._next = 0

    def receive(self, drawn: torch.Tensor) -> Callable[[], list[list[float]]]:
        """Copies `drawn` [N, 2] once it is computed; what it returns waits for that, and gives it."""
        count = drawn.shape[0]
        if count > KEPT_ROWS:
            return drawn.tolist
        place, copied = self._places[self._next][:count], self._events[self._next]
        self._next = 1 - self._next
        place.copy_(drawn, non_blocking=True)
        if copied is not None:
            copied.record()

        def wait() -> list[list[float]]:
            if copied is not None:
                copied.synchronize()
            rows: list[list[float]] = place.tolist()
            return rows

        return wait


class Captures:
    """Captures graphs one after the other, all in the same memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def take(self, inputs: StepInputs, compute: Callable[[], Outputs | torch.Tensor]) -> Captured:
        """The work of `compute`, to be repeated on what `inputs` holds."""
        inputs.fill((), ())
        compute()  # compiles and loads what it needs, which cannot be done in a capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), _capturing(graph, self._pool):
            outputs = compute()
        return Captured(inputs, graph, outputs)


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: object) -> Iterator[None]:
    """`torch.cuda.graph` without its garbage collection, which takes longer than a capture."""
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # type: ignore[arg-type]
    try:
        yield
    finally:
        graph.capture_end()
