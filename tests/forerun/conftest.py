"""What the tests of the clients share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fake_gateway import FakeGateway, serving


@pytest.fixture
def fake_gateway() -> Iterator[FakeGateway]:
    fake = FakeGateway()
    with serving(fake):
        yield fake
