"""The tests of threads, runs, memory and other domains, with a remote store.

Every test of the modules below that takes a ``store`` is collected here again, with a store behind a running
server. The tests themselves are unchanged.
"""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

import treering
from tests.limits.test_webhooks import _loopback_is_allowed, receiver, secret  # noqa: F401 - their fixtures
from tests.runs.test_search import small_pages  # noqa: F401 - their fixture
from tests.runs.test_timeline import run  # noqa: F401 - their fixture
from tests.server.running import running
from tests.threads.test_line_files import old_file, outputs  # noqa: F401 - their fixtures
from tests.workspaces.conftest import folder  # noqa: F401 - their fixture
from treering.core.ids import new_id
from treering.engines.remote.engine import RemoteEngine
from treering.server.settings import Settings

MODULES = {
    "checkpoints": "tests.acceptance.test_checkpoints",
    "moderator": "tests.acceptance.test_moderator",
    "transcripts": "tests.acceptance.test_transcripts",
    "chats": "tests.acceptance.test_chat_threads",
    "sessions": "tests.acceptance.test_user_state",
    "memory": "tests.memory.test_memory",
    "recording": "tests.runs.test_recorder",
    "faults": "tests.runs.test_recorder_faults",
    "timelines": "tests.runs.test_timeline",
    "searching": "tests.runs.test_search",
    "budgets": "tests.limits.test_budgets",
    "alerts": "tests.limits.test_alerts",
    "webhooks": "tests.limits.test_webhooks",
    "comparing": "tests.runs.test_compare",
    "retention": "tests.runs.test_retention",
    "restore": "tests.workspaces.test_restore",
    "sparse": "tests.workspaces.test_sparse_files",
    "looking": "tests.workspaces.test_browse",
    "files": "tests.workspaces.test_checkpoints",
    "state": "tests.state.test_state",
    "line files": "tests.threads.test_line_files",
    "threads": "tests.threads.test_thread",
    "pages": "tests.threads.test_history",
    "refusals": "tests.threads.test_refusals",
    "claude": "tests.adapters.claude.test_session_store",
}
OTHER_STORES = {"other_store", "process"}
"""Fixtures of tests that use a second store, or open one by its folder."""


@pytest.fixture(scope="module")
def server_url(tmp_path_factory):
    store = treering.open(tmp_path_factory.mktemp("server") / "store", durability="fast")
    with running(store, Settings(calls_per_second=1e6)) as url:
        yield url


@pytest.fixture
def store(server_url):
    with treering.open(server_url, namespace=f"test-{new_id()}") as opened:
        assert isinstance(opened.engine, RemoteEngine)
        yield opened


def _tests(module):
    for name, test in vars(import_module(module)).items():
        if name.startswith("test_") and inspect.isfunction(test):
            parameters = inspect.signature(test).parameters.keys()
            if "store" in parameters and not parameters & OTHER_STORES:
                yield name, test


for _word, _module in MODULES.items():
    for _name, _test in _tests(_module):
        globals()[f"{_name}__{_word}"] = _test
