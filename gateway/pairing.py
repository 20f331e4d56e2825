"""Whether services fit together: the gateway's tokenizer, its targets, its drafts. Pure; the words are for people."""

from __future__ import annotations

from forerun.config import PROTOCOL_VERSION
from forerun.v1 import types_pb2


def protocol_refusal(address: str, info: types_pb2.ServiceInfo) -> str | None:
    """Why a service's protocol is not ours."""
    if info.protocol_version == PROTOCOL_VERSION:
        return None
    return (
        f"{address} speaks protocol {info.protocol_version}, this gateway {PROTOCOL_VERSION}: "
        "upgrade gateway, draft and target together"
    )


def target_refusal(
    address: str, info: types_pb2.ServiceInfo, fingerprint: str, served: types_pb2.ServiceInfo | None
) -> str | None:
    """Why a target does not fit the gateway's tokenizer, or the targets already served; None if it does."""
    if info.tokenizer_fingerprint != fingerprint:
        return (
            f"target {address} ({info.model_id}) has another vocabulary than this gateway's --model "
            f"({_short(info.tokenizer_fingerprint)}, not {_short(fingerprint)}): give both the same model"
        )
    if served is not None:
        mine, theirs = _weights(info), _weights(served)
        if mine != theirs:
            return (
                f"target {address} serves {mine}, the other targets {theirs}: replicas must be the same, "
                "or a client's text would change in mid-stream"
            )
    return None


def draft_refusal(address: str, info: types_pb2.ServiceInfo, fingerprint: str) -> str | None:
    """Why a draft does not fit the target's vocabulary; None if it does, or if it works with any."""
    if info.tokenizer_fingerprint in ("", fingerprint):
        return None
    return (
        f"draft {address} ({info.model_id}) has another vocabulary than the target "
        f"({_short(info.tokenizer_fingerprint)}, not {_short(fingerprint)}): "
        "use a draft made for this target, or --model ngram, which works with any"
    )


def _weights(info: types_pb2.ServiceInfo) -> str:
    return f"{info.model_id} {_short(info.model_revision)} {info.dtype}"


def _short(digest: str) -> str:
    return digest[:12] or "none"
