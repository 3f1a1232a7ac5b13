from __future__ import annotations

import pytest

from tests.compat.savers.savers_under_test import ALL, EACH, kinds, place


@pytest.fixture(params=kinds(ALL))
def anywhere(request):
    """A place of each kind, one after the other."""
    made = place(request.param, request)
    yield made
    made.close()


@pytest.fixture(params=kinds(EACH))
def somewhere(request):
    """A place of each way to keep checkpoints."""
    made = place(request.param, request)
    yield made
    made.close()


@pytest.fixture
def saver(anywhere):
    return anywhere.open()
