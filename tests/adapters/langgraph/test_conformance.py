"""LangGraph's own conformance suite, with every capability, on every engine.

``passed_all()`` is also true when a capability is absent, so the counts are compared one by one.
"""

from __future__ import annotations

import asyncio

from langgraph.checkpoint.conformance import checkpointer_test, validate

import treering
from tests.server.running import running
from treering.adapters.langgraph import TreeringSaver
from treering.server.settings import Settings

COUNTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


class InSync(TreeringSaver):
    """The suite awaits; this gives it the sync methods."""

    async def aget_tuple(self, config):
        return self.get_tuple(config)

    async def alist(self, config, **kwargs):
        for each in self.list(config, **kwargs):
            yield each

    async def aput(self, *args):
        return self.put(*args)

    async def aput_writes(self, *args, **kwargs):
        return self.put_writes(*args, **kwargs)

    async def adelete_thread(self, thread_id):
        return self.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids):
        return self.delete_for_runs(run_ids)

    async def acopy_thread(self, source, target):
        return self.copy_thread(source, target)

    async def aprune(self, thread_ids, **kwargs):
        return self.prune(thread_ids, **kwargs)


def marks_of(url, of=TreeringSaver) -> dict[str, tuple[int, list[str]]]:
    @checkpointer_test(name="TreeringSaver")
    async def saver():
        async with treering.open_async(url) as store:
            yield of(store)

    report = asyncio.run(validate(saver))
    return {name: (result.tests_passed, result.failures) for name, result in report.results.items()}


def full_marks() -> dict[str, tuple[int, list[str]]]:
    assert sum(COUNTS.values()) == 81
    return {name: (count, []) for name, count in COUNTS.items()}


def test_memory_has_full_marks():
    assert marks_of("memory:") == full_marks()


def test_sqlite_has_full_marks(tmp_path):
    assert marks_of(tmp_path / "store") == full_marks()


def test_postgres_has_full_marks(postgres_url):
    assert marks_of(postgres_url) == full_marks()


def test_a_remote_store_has_full_marks():
    with running(treering.open("memory:"), Settings(calls_per_second=1e6)) as url:
        assert marks_of(url) == full_marks()


def test_the_sync_methods_have_full_marks_as_well(tmp_path):
    assert marks_of(tmp_path / "store", of=InSync) == full_marks()
