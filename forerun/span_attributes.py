"""The names of all spans and attributes, and the small functions that fill them. No other file spells one.

`rpc.*` follows OpenTelemetry's semantic conventions 1.45, `gen_ai.*` those of semantic-conventions-genai 0.1, and
`forerun.*` is our own, since no convention knows speculative decoding. Token usage stands on one span of a trace only,
or back ends would count it twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forerun.v1 import target_pb2

AttributeValue = str | bool | int | float | Sequence[str] | Sequence[int]
Attributes = Mapping[str, AttributeValue]

# Spans. A request's server span has its method's name.
ROUND = "round"  # gateway: from one verdict to the next
DRAFT = "draft"  # draft: proposing the candidates that the round verifies
VERIFY = "verify"  # target: the step that ends the round
PREFILL = "prefill"  # either model: computing the prompt, or all tokens after a re-open
QUEUE = "queue"  # gateway: waiting for admission

# Rounds, and the work for them.
ROUND_INDEX = "forerun.round.index"
EPOCH = "forerun.epoch"
DRAFTED = "forerun.drafted"
ACCEPTED = "forerun.accepted"
COMMITTED = "forerun.committed"
OUTCOME = "forerun.outcome"
START_POSITION = "forerun.start_position"
BATCH_SIZE = "forerun.batch_size"
WAIT_MS = "forerun.wait_ms"
STEP_MS = "forerun.step_ms"
TOKENS = "forerun.tokens"

ALL_ACCEPTED = "all_accepted"
PLAIN = "plain"

# Requests.
REQUEST_ID = "forerun.request.id"
REQUEST_ROUNDS = "forerun.request.rounds"  # totals have names of their own, or a sum over spans would count twice
REQUEST_DRAFTED = "forerun.request.drafted"
REQUEST_ACCEPTED = "forerun.request.accepted"
MODEL = "gen_ai.request.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
RPC_METHOD = "rpc.method"
RPC_STATUS = "rpc.status_code"
ERROR_TYPE = "error.type"


def outcome(drafted: int, accepted: int) -> str:
    """`plain` without candidates, `all_accepted`, or `rejected_at_N` with N counting from 0."""
    if drafted == 0:
        return PLAIN
    return ALL_ACCEPTED if accepted >= drafted else f"rejected_at_{accepted}"


def round_attributes(
    index: int,
    *,
    start_position: int,
    drafted: int,
    accepted: int,
    committed: int,
    epoch: int = 0,
    batch_size: int = 1,
    wait_ns: int = 0,
    step_ns: int = 0,
) -> Attributes:
    """For `round` and `verify`: one outcome, seen from both ends of the wire."""
    return {
        ROUND_INDEX: index,
        START_POSITION: start_position,
        DRAFTED: drafted,
        ACCEPTED: accepted,
        COMMITTED: committed,
        OUTCOME: outcome(drafted, accepted),
        EPOCH: epoch,
        BATCH_SIZE: batch_size,
        WAIT_MS: wait_ns / 1e6,
        STEP_MS: step_ns / 1e6,
    }


def verdict_attributes(verdict: target_pb2.Verdict) -> Attributes:
    """The same, from the message that both ends have."""
    return round_attributes(
        verdict.round_index,
        start_position=verdict.start_position,
        drafted=verdict.drafted_count,
        accepted=verdict.accepted_count,
        committed=len(verdict.token_ids),
        epoch=verdict.epoch,
        batch_size=verdict.batch_size,
        wait_ns=verdict.wait_ns,
        step_ns=verdict.step_ns,
    )


def draft_attributes(index: int, *, start_position: int, drafted: int, epoch: int, batch_size: int = 1) -> Attributes:
    """For `draft`: what was proposed, before anybody judged it."""
    return {
        ROUND_INDEX: index,
        START_POSITION: start_position,
        DRAFTED: drafted,
        EPOCH: epoch,
        BATCH_SIZE: batch_size,
    }


def prefill_attributes(tokens: int, *, batch_size: int = 1) -> Attributes:
    return {TOKENS: tokens, BATCH_SIZE: batch_size}


def rpc_attributes(method: str) -> Attributes:
    return {"rpc.system.name": "grpc", RPC_METHOD: method}


def inference_attributes(
    request_id: str,
    model: str,
    *,
    chat: bool,
    max_tokens: int,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int | None = None,
) -> Attributes:
    """What was asked for; known before the first token."""
    attributes: dict[str, AttributeValue] = {
        REQUEST_ID: request_id,
        "gen_ai.operation.name": "chat" if chat else "text_completion",
        "gen_ai.provider.name": "forerun",
        MODEL: model,
        "gen_ai.request.max_tokens": max_tokens,
        "gen_ai.request.temperature": temperature,
        "gen_ai.request.top_p": top_p,
        "gen_ai.request.stream": True,
    }
    if top_k:
        attributes["gen_ai.request.top_k"] = top_k
    if seed is not None:
        # Seeds are unsigned, attributes are not: the same 64 bits.
        attributes["gen_ai.request.seed"] = seed - (1 << 64) if seed >> 63 else seed
    return attributes


def usage_attributes(
    *,
    input_tokens: int,
    output_tokens: int,
    finish_reason: str,
    time_to_first_token_s: float | None = None,
    rounds: int = 0,
    drafted: int = 0,
    accepted: int = 0,
) -> Attributes:
    """What came out; for the end of the request."""
    attributes: dict[str, AttributeValue] = {
        INPUT_TOKENS: input_tokens,
        OUTPUT_TOKENS: output_tokens,
        "gen_ai.response.finish_reasons": (finish_reason,),
        REQUEST_ROUNDS: rounds,
        REQUEST_DRAFTED: drafted,
        REQUEST_ACCEPTED: accepted,
    }
    if time_to_first_token_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = time_to_first_token_s
    return attributes
