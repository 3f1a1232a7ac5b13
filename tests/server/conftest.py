"""A server over the shared stores, called without a network; `test_serving` starts real ones."""

import pytest
from starlette.testclient import TestClient

from treering.server.app import create_app
from treering.server.settings import Settings


@pytest.fixture
def client(store):
    with TestClient(create_app(store, Settings()), base_url="http://127.0.0.1:8787") as made:
        yield made
