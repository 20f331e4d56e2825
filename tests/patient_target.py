"""A target service that waits for every draft: `python -m tests.patient_target`, with the target's own flags.

With models as small as the tests' a real target soon finds that drafts are not worth the wait, and from then on none is
in time. Everything but that policy is the product's.
"""

from __future__ import annotations

import sys

from target_service import __main__ as service
from target_service import assembly
from target_service.patience import Patience


class Patient(Patience):
    """Waits as long as it may."""

    def seconds(self, batch_size: int, rounds_since_wait: int) -> float:
        return self._limit_s


if __name__ == "__main__":
    assembly.Patience = Patient  # type: ignore[misc]
    sys.exit(service.main())
