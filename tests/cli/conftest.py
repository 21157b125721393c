"""Schemes that a test registers are gone after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from witcert import schemes


@pytest.fixture(autouse=True)
def _registry_as_before() -> Iterator[None]:
    before = set(schemes.names())
    yield
    for name in set(schemes.names()) - before:
        schemes.unregister(name)
