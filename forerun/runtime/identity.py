"""What a model service says it is: its `ServiceInfo`, and where on this machine its model runs."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import torch

from forerun.config import PROTOCOL_VERSION
from forerun.errors import FailedPrecondition
from forerun.runtime.model import LoadedModel
from forerun.v1 import types_pb2
from forerun.vocabulary import read_vocabulary

HASHED_BYTES = 1 << 20  # of each weight file's start, and its size: enough to tell checkpoints apart, quick to read


def new_incarnation() -> int:
    """A number that no other start of the process has; never zero."""
    return random.SystemRandom().getrandbits(64) or 1


def choose_device(device: str) -> torch.device:
    """What "auto" stands for here, or the device itself. Raises FailedPrecondition if it is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise FailedPrecondition(f"device: {device!r} is unknown; name cpu, cuda or cuda:N") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise FailedPrecondition(f"device: {device!r} is not there; torch sees {torch.cuda.device_count()} GPUs")
    return chosen


def choose_dtype(dtype: str, device: torch.device, guesses: bool = False) -> torch.dtype:
    """What "auto" stands for on a device: bfloat16 on a GPU, float32 on a CPU, where losslessness is exact.

    A draft only guesses: on a CPU that has instructions for bfloat16 it gets that, which is faster and guesses as well.
    """
    if dtype == "auto":
        short = device.type == "cuda" or (guesses and _has_bfloat16())
        return torch.bfloat16 if short else torch.float32
    chosen: torch.dtype = getattr(torch, dtype)
    return chosen


def choose_reuse(prefix_reuse: str, device: torch.device) -> bool:
    """What "auto" stands for on a device: a GPU gathers a sequence's blocks at no cost, a CPU copies what is no run."""
    return prefix_reuse == "on" or (prefix_reuse == "auto" and device.type != "cpu")


def _has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself, as far as this torch can tell."""
    asked = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return asked is not None and bool(asked())


def revision(folder: Path) -> str:
    """A digest of a checkpoint: its configuration, and start and size of each weight file."""
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(HASHED_BYTES))
    return digest.hexdigest()


def service_info(
    model_id: str, model: LoadedModel, tokenizer_folder: Path, context_length: int, max_sessions: int
) -> types_pb2.ServiceInfo:
    """The description of a service with a model. `tokenizer_folder` names the vocabulary that the model speaks."""
    vocabulary = read_vocabulary(tokenizer_folder)
    return types_pb2.ServiceInfo(
        protocol_version=PROTOCOL_VERSION,
        capabilities=["run-ahead"],
        incarnation=new_incarnation(),
        model_id=model_id,
        model_revision=revision(model.folder),
        dtype=str(model.dtype).removeprefix("torch."),
        tokenizer_fingerprint=vocabulary.fingerprint,
        vocabulary_size=vocabulary.size,
        context_length=context_length,
        max_sessions=max_sessions,
        end_token_ids=sorted(model.end_token_ids),
        device=str(model.device),
    )
