"""Checks that both model services make before they take a session. Nothing of a bad entry reaches a model."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.config import MAX_DRAFT_LENGTH, MAX_EPOCH, MAX_ROUND_INDEX
from forerun.errors import InvalidArgument
from forerun.sampling_params import SamplingParams, from_proto
from forerun.v1 import types_pb2


def check_token_ids(field: str, token_ids: Sequence[int], vocabulary_size: int) -> None:
    """Raises InvalidArgument if an id is outside the vocabulary. A size of 0 allows any."""
    if vocabulary_size and token_ids and max(token_ids) >= vocabulary_size:
        raise InvalidArgument(field, f"holds {max(token_ids)}, ids must be below {vocabulary_size}")


def check_session(prompt: Sequence[int], output: Sequence[int], draft_length: int, vocabulary_size: int) -> None:
    """Raises InvalidArgument naming the field of an Open that cannot be served."""
    if not prompt:
        raise InvalidArgument("prompt_token_ids", "must hold at least one token")
    check_token_ids("prompt_token_ids", prompt, vocabulary_size)
    check_token_ids("output_token_ids", output, vocabulary_size)
    if draft_length > MAX_DRAFT_LENGTH:
        raise InvalidArgument("draft_length", f"is {draft_length}, at most {MAX_DRAFT_LENGTH}")


def check_epoch(field: str, epoch: int) -> None:
    """Raises InvalidArgument if there is no room to count on from an epoch."""
    if epoch > MAX_EPOCH:
        raise InvalidArgument(field, f"is {epoch}, at most {MAX_EPOCH}")


def check_round_index(index: int) -> None:
    """Raises InvalidArgument if there is no room to count on from a round."""
    if index > MAX_ROUND_INDEX:
        raise InvalidArgument("round_index", f"is {index}, at most {MAX_ROUND_INDEX}")


def checked_sampling(message: types_pb2.SamplingParams, vocabulary_size: int) -> SamplingParams:
    """The params a message stands for. Raises InvalidArgument naming the field that is out of range."""
    params = from_proto(message)
    params.validate(vocabulary_size or 1 << 31)
    return params
