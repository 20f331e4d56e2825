"""Where a session ends, token by token. Pure.

A round commits several tokens at once, and the end may lie on any of them; what comes after it was never said.
Stop strings are text and therefore the gateway's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from forerun.v1 import types_pb2


def cut_at_end(
    token_ids: Sequence[int], end_token_ids: Collection[int], room: int
) -> tuple[Sequence[int], types_pb2.FinishReason]:
    """The tokens up to and including the end, and why it is one; all of them and UNSPECIFIED if there is none.

    `room` is how many tokens the session may still have, at least 1. An end token in the last place is a stop.
    """
    for index, token_id in enumerate(token_ids):
        if token_id in end_token_ids:
            return token_ids[: index + 1], types_pb2.FINISH_REASON_STOP
        if index + 1 == room:
            return token_ids[: index + 1], types_pb2.FINISH_REASON_LENGTH
    return token_ids, types_pb2.FINISH_REASON_UNSPECIFIED
