"""The candidates of one session beyond its committed tokens, as a receiver keeps them: the gateway and the target.

What arrives may be late, repeated, or contradict what was committed meanwhile. The buffer decides by position and
epoch alone, so that both receivers come to the same view of the same entries. It does not own the committed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class CandidateBuffer:
    """Candidates at the positions from `len(committed)` on, all of one epoch.

    epoch          the highest epoch seen
    refuted_epoch  candidates of this epoch and of lower ones are dead: one of them contradicted a committed token
    token_ids      the candidates, at most `limit`
    """

    __slots__ = ("_exhausted_at", "epoch", "limit", "refuted_epoch", "token_ids")

    def __init__(self, limit: int, refuted_epoch: int = 0) -> None:
        self.limit = limit
        self.epoch = refuted_epoch
        self.refuted_epoch = refuted_epoch
        self.token_ids: list[int] = []
        self._exhausted_at = -1

    def __len__(self) -> int:
        return len(self.token_ids)

    def offer(
        self, epoch: int, start: int, token_ids: Sequence[int], exhausted: bool, committed: Sequence[int]
    ) -> bool:
        """Takes a run of candidates from absolute position `start` on. False: it was stale or left a gap.

        A higher epoch replaces all that is held. A token that contradicts a committed one, or one held under the
        same epoch, refutes the epoch.
        """
        if epoch <= self.refuted_epoch or epoch < self.epoch:
            return False
        if epoch > self.epoch:
            self.epoch = epoch
            self.token_ids.clear()
            self._exhausted_at = -1
        head = len(committed) + len(self.token_ids)
        if start > head:
            return False
        overlap = min(head - start, len(token_ids))
        if any(token_ids[i] != self._at(start + i, committed) for i in range(overlap)):
            self.refute()
            return False
        room = self.limit - len(self.token_ids)
        self.token_ids.extend(token_ids[overlap : overlap + room])
        if exhausted and start + len(token_ids) == len(committed) + len(self.token_ids):
            self._exhausted_at = start + len(token_ids)
        return True

    def leaves_gap(self, epoch: int, start: int, committed_length: int) -> bool:
        """Whether a run of candidates of a living epoch starts beyond what is held: what came before it was lost."""
        return epoch == self.epoch > self.refuted_epoch and start > committed_length + len(self.token_ids)

    def commit(self, token_ids: Sequence[int]) -> bool:
        """Takes the committed tokens off the front. False: a candidate contradicted them, and its epoch is refuted."""
        compared = min(len(self.token_ids), len(token_ids))
        if self.token_ids[:compared] != list(token_ids[:compared]):
            self.refute()
            return False
        del self.token_ids[:compared]
        if not self.token_ids:
            self._exhausted_at = -1  # more is committed now
        return True

    def refute(self) -> None:
        """Declares the epoch dead, and all candidates that are held with it."""
        self.refuted_epoch = max(self.refuted_epoch, self.epoch)
        self.token_ids.clear()
        self._exhausted_at = -1

    def exhausted(self, committed_length: int) -> bool:
        """Whether the draft said that nothing follows what is held."""
        return self._exhausted_at == committed_length + len(self.token_ids)

    def _at(self, position: int, committed: Sequence[int]) -> int:
        if position < len(committed):
            return committed[position]
        return self.token_ids[position - len(committed)]
