"""Reading variants, and which of them a set of services can measure."""

from __future__ import annotations

import pytest

from forerun.bench.variants import Variant, by_drafter, parse_variants, refuse_other_drafters
from forerun.errors import FailedPrecondition, InvalidArgument


def test_variants_are_off_or_a_drafter_with_a_length() -> None:
    assert parse_variants("off, ngram:4,ngram+model:2,own/name:8,model") == [
        Variant("off"),
        Variant("ngram:4", "ngram", 4),
        Variant("ngram+model:2", "ngram+model", 2),
        Variant("own/name:8", "own/name", 8),
        Variant("model", "model", None),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "variants: names none"),
        ("off,model:0", "model:0: '0' is not a draft length, a whole number from 1 to 64"),
        ("model:65", "'65' is not a draft length"),
        ("model:four", "'four' is not a draft length"),
        ("off:2", "off:2: off has no draft length"),
        (":4", ":4: names no drafter"),
        ("off,model:4,off", "off stands there twice"),
    ],
)
def test_a_wrong_variant_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_variants(text)


def test_off_is_measured_beside_every_drafter() -> None:
    groups = by_drafter(parse_variants("model:2,off,ngram:4,model:4"))
    assert {drafter: [one.name for one in variants] for drafter, variants in groups.items()} == {
        "model": ["off", "model:2", "model:4"],
        "ngram": ["off", "ngram:4"],
    }
    assert list(by_drafter(parse_variants("off"))) == ["none"]


def test_a_running_gateway_measures_its_own_drafter_only() -> None:
    refuse_other_drafters(parse_variants("off,draft:2,model:4,small:6"), "small")
    refuse_other_drafters(parse_variants("off,ngram:2"), "ngram")
    refuse_other_drafters(parse_variants("off"), "")
    with pytest.raises(FailedPrecondition, match=r"ngram:4 needs another draft service.*has the draft small"):
        refuse_other_drafters(parse_variants("off,ngram:4"), "small")
    with pytest.raises(FailedPrecondition, match="model:4 needs another draft service"):
        refuse_other_drafters(parse_variants("model:4"), "ngram")
    with pytest.raises(FailedPrecondition, match="has no draft: measure off"):
        refuse_other_drafters(parse_variants("draft:4"), "")
