"""The gateway's draft length: by hand where the operator set one, else what the controller measures."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.config import MAX_DRAFT_LENGTH, ConfigError, GatewayConfig
from gateway.controller import Controller
from gateway.round import Round


@dataclass(frozen=True, slots=True)
class LengthTable:
    """Draft lengths by hand: (sessions from which it holds, draft length), ascending."""

    rows: tuple[tuple[int, int], ...]

    @classmethod
    def parse(cls, text: str) -> LengthTable:
        """Reads "1:4,4:2,9:0". Raises ValueError that says what is wrong."""
        rows = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            running, colon, length = part.partition(":")
            if not (colon and running.isdigit() and length.isdigit()):
                raise ValueError(f"{part!r} is not SESSIONS:DRAFT_LENGTH, as in 1:4,4:2,9:0")
            rows.append((int(running), int(length)))
        if rows != sorted(set(rows)):
            raise ValueError("the numbers of sessions must ascend")
        if rows and max(length for _, length in rows) > MAX_DRAFT_LENGTH:
            raise ValueError(f"draft lengths must be at most {MAX_DRAFT_LENGTH}")
        return cls(tuple(rows))

    def length(self, running: int) -> int | None:
        """The draft length for a load; None below the first row."""
        lengths = [length for from_, length in self.rows if running >= from_]
        return lengths[-1] if lengths else None


class DraftLengths:
    """The gateway's draft length, by hand where the operator set one, else by measuring."""

    def __init__(self, config: GatewayConfig) -> None:
        try:
            self._table = LengthTable.parse(config.draft_length_by_batch)
        except ValueError as error:
            raise ConfigError(f"draft_length_by_batch: {error}") from None
        self._disable_above = config.disable_above
        self._configured = config.draft_length
        self._controller = Controller(config.draft_length) if config.adaptive == "on" else None

    def now(self, running: int) -> int:
        """The draft length while `running` sessions decode."""
        if self._disable_above and running > self._disable_above:
            return 0
        by_hand = self._table.length(running)
        if by_hand is not None:
            return by_hand
        return self._configured if self._controller is None else self._controller.draft_length(running)

    def record(self, finished: Round, running: int, beside_prompt: bool) -> bool:
        """Learns from a round; true if the draft length may have changed."""
        by_hand = self._table.length(running) is not None or 0 < self._disable_above < running
        if self._controller is None or by_hand:
            return False
        return self._controller.record(finished, running, beside_prompt)
