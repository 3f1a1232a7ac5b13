from __future__ import annotations

from collections.abc import Iterator

import pytest

import treering
from tests.replays.provider import Provider, provider


@pytest.fixture
def server() -> Iterator[Provider]:
    with provider() as running:
        yield running


@pytest.fixture
def store(tmp_path) -> Iterator[treering.Store]:
    with treering.open(tmp_path / "store") as opened:
        yield opened
