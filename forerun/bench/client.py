"""Sends one request and writes down what its client sees: when how many tokens came, and what the rounds did."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import grpc

from forerun.bench.records import Request, Round
from forerun.bench.variants import Variant
from forerun.v1 import gateway_pb2, types_pb2

Said = tuple[str, str]  # role and content


@dataclass(frozen=True, slots=True)
class Sampling:
    """What all requests of a run have in common."""

    max_tokens: int
    temperature: float
    seed: int
    window: int | None = None
    timeout_s: float = 300.0


def message(variant: Variant, sampling: Sampling, said: list[Said], seed: int) -> gateway_pb2.GenerateRequest:
    """The request. A prompt has the same seed in every variant, so that the outputs can be compared."""
    request = gateway_pb2.GenerateRequest(
        chat=gateway_pb2.Chat(messages=[gateway_pb2.ChatMessage(role=role, content=text) for role, text in said]),
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        seed=seed,
        include_rounds=True,
        speculation=gateway_pb2.Speculation(enabled=variant.speculates),
    )
    if variant.draft_length is not None:
        request.speculation.draft_length = variant.draft_length
    if sampling.window is not None and variant.speculates:
        request.speculation.window = sampling.window
    return request


class Call:
    """One call of Generate under way."""

    def __init__(self, record: Request, keep_timeline: bool) -> None:
        self.record = record
        self.text = ""
        self._keep_timeline = keep_timeline

    async def run(self, stub: Any, request: gateway_pb2.GenerateRequest, timeout_s: float) -> None:
        """Fills the record. A failure is written into it and never raised."""
        began = time.perf_counter()
        finished = False
        try:
            async for response in stub.Generate(request, timeout=timeout_s):
                self._take(response, time.perf_counter() - began)
                finished = response.HasField("finished")
            if not finished:
                self.record.error = "the answer broke off without an end"
        except grpc.aio.AioRpcError as error:
            self.record.error = f"{error.code().name}: {error.details()}"
        self.record.latency_s = time.perf_counter() - began

    def _take(self, response: gateway_pb2.GenerateResponse, now_s: float) -> None:
        match response.WhichOneof("event"):
            case "chunk":
                self._chunk(response.chunk, now_s)
            case "finished":
                self._finished(response.finished)

    def _chunk(self, chunk: gateway_pb2.Chunk, now_s: float) -> None:
        self.text += chunk.text
        if chunk.token_ids:
            self.record.token_ids.extend(chunk.token_ids)
            self.record.chunks.append((now_s, len(chunk.token_ids)))
        tally = self.record.speculation
        for round in chunk.rounds:
            tally.committed += len(round.committed_token_ids)
            tally.round_ms += round.round_ns / 1e6
            tally.step_ms += round.step_ns / 1e6
            tally.wait_ms += round.wait_ns / 1e6
            tally.draft_ms += round.draft_ns / 1e6
            if self._keep_timeline:
                self.record.timeline.append(_timeline_round(round))

    def _finished(self, finished: gateway_pb2.Finished) -> None:
        usage, tally = finished.speculation, self.record.speculation
        self.record.finish_reason = (
            types_pb2.FinishReason.Name(finished.finish_reason).removeprefix("FINISH_REASON_").lower()
        )
        self.record.prompt_tokens = finished.prompt_tokens
        tally.rounds = usage.rounds
        tally.drafted, tally.accepted = usage.drafted_tokens, usage.accepted_tokens
        tally.drafted_per_position = list(usage.drafted_per_position)
        tally.accepted_per_position = list(usage.accepted_per_position)


def _timeline_round(round: gateway_pb2.Round) -> Round:
    return Round(
        draft_texts=list(round.draft_texts),
        committed_texts=list(round.committed_texts),
        accepted=round.accepted_count,
        round_ms=round.round_ns / 1e6,
        step_ms=round.step_ns / 1e6,
        wait_ms=round.wait_ns / 1e6,
        draft_ms=round.draft_ns / 1e6,
        batch_size=round.batch_size,
    )
