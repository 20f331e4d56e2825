"""What is compared: `off`, or a drafter and how many candidates it proposes a round, such as `model:4`.

The drafter belongs to the running draft service, so variants of one drafter are measured together; the draft length
and `off` are set with each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.config import MAX_DRAFT_LENGTH
from forerun.errors import FailedPrecondition, InvalidArgument

OFF = "off"
NO_DRAFTER = "none"
ANY_DRAFT = "draft"  # whichever a running gateway has
MODEL, NGRAM = "model", "ngram"
NGRAM_MODEL = f"{NGRAM}+{MODEL}"  # a match in the text so far, else the model


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to decode. Without a drafter it is plain decoding; without a length, the gateway chooses as it goes."""

    name: str
    drafter: str = ""
    draft_length: int | None = None

    @property
    def speculates(self) -> bool:
        return bool(self.drafter)


def parse_variants(text: str) -> list[Variant]:
    """Reads `off,ngram:4,model:2`. Raises InvalidArgument that names the part that is wrong."""
    variants = [parse_variant(part.strip()) for part in text.split(",") if part.strip()]
    if not variants:
        raise InvalidArgument("variants", "names none; for example off,model:4")
    names = [variant.name for variant in variants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgument("variants", f"{twice} stands there twice")
    return variants


def parse_variant(part: str) -> Variant:
    """Reads one variant."""
    drafter, colon, length = part.rpartition(":")
    if part == OFF or drafter == OFF:
        if colon:
            raise InvalidArgument("variants", f"{part}: off has no draft length")
        return Variant(OFF)
    if not colon:
        return Variant(part, drafter=part)
    if not length.isdecimal() or not 1 <= int(length) <= MAX_DRAFT_LENGTH:
        raise InvalidArgument(
            "variants", f"{part}: {length!r} is not a draft length, a whole number from 1 to {MAX_DRAFT_LENGTH}"
        )
    if not drafter:
        raise InvalidArgument("variants", f"{part}: names no drafter; for example model{part}")
    return Variant(part, drafter, int(length))


def by_drafter(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    """Which variants are measured on which drafter, in the order given; `off` beside each, to compare with."""
    off = [variant for variant in variants if not variant.speculates]
    drafters = list(dict.fromkeys(variant.drafter for variant in variants if variant.speculates))
    if not drafters:
        return {NO_DRAFTER: off}
    return {drafter: off + [variant for variant in variants if variant.drafter == drafter] for drafter in drafters}


def refuse_other_drafters(variants: Sequence[Variant], draft_model: str) -> None:
    """Raises FailedPrecondition if a running gateway, whose draft is `draft_model`, cannot measure one of them."""
    model = NGRAM if draft_model == NGRAM else MODEL
    for variant in variants:
        if not variant.speculates or (draft_model and variant.drafter in (ANY_DRAFT, draft_model, model)):
            continue
        has = f"has the draft {draft_model}: measure draft:4" if draft_model else "has no draft: measure off"
        raise FailedPrecondition(
            f"{variant.name} needs another draft service; this gateway {has}, or let bench start the services (--up)"
        )
