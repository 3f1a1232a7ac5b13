"""Documents, their versions, and who may write them."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

import treering
from treering.core.clock import ManualClock
from treering.engines.memory.engine import MemoryEngine
from treering.errors import Conflict, InvalidInput, NotFound, RefMoved
from treering.memory.documents import MemoryDocument, Provenance
from treering.store import Store


def test_a_document_round_trips(store):
    memory = store.memory
    saved = memory.save(
        "alice/tone",
        "Prefers concise replies.",
        tags=["style", "alice"],
        auto_load=True,
        expires_at=datetime(2100, 1, 1, tzinfo=UTC),
        metadata={"priority": 3, "since": datetime(2026, 1, 2, tzinfo=UTC), "nested": {"a": [1, None]}},
    )
    found = memory.get("alice/tone")
    assert found == saved
    assert (found.content, found.tags, found.auto_load) == (
        "Prefers concise replies.",
        ["style", "alice"],
        True,
    )
    assert found.expires_at == datetime(2100, 1, 1, tzinfo=UTC)
    assert found.metadata["priority"] == 3
    assert found.metadata["nested"] == {"a": [1, None]}
    assert found.created_at == found.updated_at
    assert found.version == 1
    assert memory.get("bob") is None


def test_versions_are_kept_compared_and_restored(store):
    memory = store.memory
    memory.save("plan", "one\ntwo\n", tags=["a"])
    memory.save("plan", "one\nthree\n", tags=["b"], metadata={"by": "me"})
    assert memory.delete("plan")
    assert not memory.delete("plan")
    assert memory.get("plan") is None
    again = memory.restore("plan", 1)
    assert (again.content, again.tags, again.version) == ("one\ntwo\n", ["a"], 4)
    assert [(each.version, each.operation) for each in memory.history("plan")] == [
        (4, "saved"),
        (3, "deleted"),
        (2, "saved"),
        (1, "saved"),
    ]
    assert [each.document and each.document.content for each in memory.history("plan")] == [
        "one\ntwo\n", None, "one\nthree\n", "one\ntwo\n",
    ]  # fmt: skip
    assert memory.get("plan", version=2).content == "one\nthree\n"
    assert memory.get("plan", version=9) is None
    diff = memory.diff("plan", 1, 2)
    assert diff.text.splitlines()[2:] == ["@@ -1,2 +1,2 @@", " one", "-two", "+three"]
    assert (diff.added_tags, diff.removed_tags, diff.changed_metadata) == (("b",), ("a",), ("by",))
    assert memory.diff("plan", 2).new == 4
    with pytest.raises(NotFound, match="it has 1, 2, 3, 4"):
        memory.diff("plan", 1, 7)
    with pytest.raises(NotFound, match="no version 7"):
        memory.restore("plan", 7)
    assert store.verify().ok


def test_saving_an_identical_document_creates_no_version(store):
    first = store.memory.save("a", "text", tags=["x"])
    assert store.memory.save("a", "text", tags=["x"]) == first
    assert len(list(store.memory.history("a"))) == 1
    assert store.memory.save("a", "text", tags=["y"]).version == 2
    assert store.memory.search("text").documents[0].tags == ["y"]


def test_a_write_against_an_older_version_raises(store):
    memory = store.memory
    memory.save("a", "1", if_version=0)
    memory.save("a", "2", if_version=1)
    with pytest.raises(RefMoved, match="is at version 2, expected version 1"):
        memory.save("a", "3", if_version=1)
    with pytest.raises(Conflict):
        memory.save("a", "3", if_version=0)
    with pytest.raises(Conflict):
        memory.delete("a", if_version=1)
    assert memory.get("a").content == "2"
    with pytest.raises(RefMoved, match="does not exist"):
        memory.save("b", "1", if_version=1)


def test_query_by_tags_prefix_and_filter(store):
    memory = store.memory
    for number in range(12):
        memory.save(f"n/{number:04}", f"note {number}", tags=[f"t{number % 3}", f"u{number % 2}"])
    memory.save("other", "x", auto_load=True)
    ids = [each.id for each in memory.query(tags=["t0", "u0"])]
    assert ids == [f"n/{number:04}" for number in range(12) if number % 3 == 0 or number % 2 == 0]
    assert [each.id for each in memory.query(tags={"t0", "u0"}, match="all")] == ["n/0000", "n/0006"]
    assert [each.id for each in memory.query(auto_load=True)] == ["other"]
    assert len(memory.query(prefix="n/000")) == 10
    assert [each.id for each in memory.query(filter=lambda each: "7" in each.content)] == ["n/0007"]
    assert len(memory.query(limit=5)) == 5
    assert memory.query(tags=["nothing"]) == []


def test_namespaces_with_a_common_prefix_are_separate(store):
    names = ["", "user", "user/1", "user/10", "user1", "user%2F1"]
    for name in names:
        memory = store.memory.in_namespace(name) if name else store.memory
        memory.save("who", f"I am {name or 'nobody'} walnut")
    assert sorted(store.memory.namespaces()) == sorted(names)
    for name in names:
        memory = store.memory.in_namespace(name) if name else store.memory
        assert [each.content for each in memory.query()] == [f"I am {name or 'nobody'} walnut"]
        assert [each.content for each in memory.search("walnut").documents] == [
            f"I am {name or 'nobody'} walnut"
        ]
    found = store.memory.search("walnut", everywhere=True, limit=20)
    assert sorted(hit.namespace for hit in found) == sorted(names)


def test_expired_documents_are_not_found():
    clock = ManualClock()
    with Store(MemoryEngine(), clock=clock) as store:
        now = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
        store.memory.save("soon", "a heron", auto_load=True, expires_at=now + timedelta(seconds=10))
        store.memory.save("later", "a heron", auto_load=True, expires_at=now + timedelta(seconds=99))
        assert len(store.memory.search("heron")) == 2
        clock.advance(seconds=10)
        assert store.memory.get("soon") is None
        assert store.memory.get("soon", include_expired=True).content == "a heron"
        assert [each.id for each in store.memory.query()] == ["later"]
        assert [hit.document.id for hit in store.memory.search("heron")] == ["later"]
        assert [each.id for each in store.memory.context().documents] == ["later"]


def test_provenance_is_kept_and_trust_is_that_of_the_least_trusted_source(store):
    memory = store.memory
    memory.save("page", "from the web", provenance=Provenance(source="https://example.org", trust="low"))
    memory.save("told", "from alice", provenance=Provenance(source="alice", trust="high", step=4))
    mixed = memory.save(
        "both",
        "from both",
        provenance=Provenance(trust="high", derived_from=("page", "told")),
    )
    assert mixed.provenance.trust == "low"
    third = memory.save("third", "x", provenance=Provenance(derived_from=("both",)))
    assert third.provenance.trust == "low"
    assert memory.get("told").provenance == Provenance(source="alice", trust="high", step=4)
    with store.run(agent="planner") as run:
        memory.save("during", "a run")
    assert memory.get("during").provenance.run == run.id
    (version,) = memory.history("during")
    assert version.provenance.run == run.id


def test_update_keeps_tags_and_metadata(store):
    memory = store.memory
    memory.save("log", "0", tags=["t"], metadata={"k": "v"})
    changed = memory.update("log", lambda text: f"{text},1")
    assert (changed.content, changed.tags, changed.metadata["k"]) == ("0,1", ["t"], "v")
    assert memory.update("new", lambda text: text + "!", default="hello").content == "hello!"


@pytest.mark.parametrize("bad", ["", " ", "a\nb", "x" * 600, "\ud800"])
def test_an_invalid_id_is_rejected(bad):
    with treering.open("memory:") as store:
        with pytest.raises(InvalidInput):
            store.memory.save(bad, "text")
        assert store.memory.query() == []


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"tags": ["a\nb"]}, "control character"),
        ({"tags": "abc"}, "list of strings"),
        ({"tags": [""]}, "empty"),
        ({"content": "x" * (50 * 1024 * 1024)}, "the limit is"),
        ({"content": b"bytes"}, "pass a str"),
        ({"content": "\ud800"}, "not valid Unicode"),
        ({"metadata": {"big": "x" * 40_000}}, "move it into the content"),
        ({"metadata": {"expires_at": "next week"}}, "ISO 8601"),
        ({"metadata": {"odd": object()}}, "odd"),
        ({"content": None}, "has no content"),
    ],
)
def test_an_invalid_document_is_rejected_and_changes_nothing(fields, message):
    with treering.open("memory:") as store:
        store.memory.save("a", "before")
        given = {"content": "after"} | fields
        with pytest.raises(InvalidInput, match=message):
            store.memory.save("a", **given)
        assert [each.content for each in store.memory.query()] == ["before"]


def test_large_documents_are_stored_and_found(store):
    text = "filler word here\n" * 20_000 + "hornbeam"
    store.memory.save("large", text)
    assert store.memory.get("large").content == text
    assert [each.id for each in store.memory.search("hornbeam").documents] == ["large"]


def test_forget_leaves_no_byte(tmp_path):
    canary = "zanzibar-canary-7731"
    folder = tmp_path / "store"
    with treering.open(folder) as store:
        memory = store.memory.in_namespace("user/alice")
        memory.save(f"{canary}-id", f"first {canary}", tags=[f"{canary}-tag"], metadata={"k": canary})
        memory.save(f"{canary}-id", f"{canary} " * 2000)
        memory.save(f"{canary}-id", f"日本語のメモ {canary}")
        memory.save("stays", "another walnut")
        receipt = memory.forget(f"{canary}-id")
        assert (receipt.scopes, receipt.refs, receipt.events) == (1, 1, 3)
        assert receipt.proof == "bytes"
        with pytest.raises(NotFound):
            memory.forget(f"{canary}-id")
        assert list(memory.history(f"{canary}-id")) == []
        assert memory.search(canary).hits == ()
        assert [each.id for each in memory.search("walnut").documents] == ["stays"]
        assert store.verify().ok
    hits = [path for path in folder.rglob("*") if path.is_file() and b"zanzibar" in path.read_bytes()]
    assert hits == []


def test_forgetting_a_namespace_erases_its_memory(store):
    store.memory.in_namespace("user/alice").save("a", "text")
    store.memory.in_namespace("user/bob").save("a", "text")
    store.forget(namespace="user/alice")
    assert list(store.memory.namespaces()) == ["user/bob"]


def test_old_versions_survive_gc(store):
    large = "x" * 10_000
    store.memory.save("a", large)
    store.memory.save("a", "short")
    store.gc(grace_seconds=0)
    assert store.memory.restore("a", 1).content == large
    assert store.verify().ok


def test_a_copied_store_has_the_documents_and_the_index(tmp_path):
    with treering.open("memory:") as store, treering.open(tmp_path / "copy") as copy:
        store.memory.save("a", "a walnut")
        store.memory.save("a", "a walnut tree")
        store.copy_to(copy)
        assert copy.memory.get("a") == store.memory.get("a")
        assert [each.id for each in copy.memory.search("trees").documents] == ["a"]
        assert copy.memory.get("a", version=1).content == "a walnut"


def test_the_async_api(tmp_path):
    async def scene():
        async with treering.open_async(tmp_path / "store") as store:
            memory = store.memory.in_namespace("alice")
            await memory.save("a", "a walnut", tags=["t"], auto_load=True)
            await memory.update("a", lambda text: text + " tree")
            assert (await memory.get("a")).version == 2
            assert [hit.document.id for hit in await memory.search("walnuts")] == ["a"]
            assert [each.version async for each in memory.history("a")] == [2, 1]
            assert [name async for name in store.memory.namespaces()] == ["alice"]
            assert "a walnut tree" in (await memory.context()).text
            assert [each.id for each in await memory.query(tags=["t"])] == ["a"]
            assert await memory.delete("a")

    asyncio.run(scene())


def test_whole_documents_can_be_saved():
    with treering.open("memory:") as store:
        store.memory.save(MemoryDocument(id="a", content="x", metadata={"tags": ["t"], "own": 1}))
        store.memory.save({"id": "b", "content": "y", "metadata": {"autoLoad": True}})
        assert [each.id for each in store.memory.query(tags=["t"])] == ["a"]
        assert [each.id for each in store.memory.query(auto_load=True)] == ["b"]
        with pytest.raises(InvalidInput, match="id, content and metadata"):
            store.memory.save({"id": "c", "text": "z"})
        with pytest.raises(InvalidInput, match="pass it alone"):
            store.memory.save(MemoryDocument(id="a", content="x"), tags=["t"])


def test_save_many_is_one_commit(store):
    store.memory.save("same", "as before")
    store.memory.save("changed", "before")
    given = [
        {"id": "same", "content": "as before"},
        {"id": "changed", "content": "overwritten below"},
        {"id": "changed", "content": "after"},
        *({"id": f"n/{number}", "content": f"walnut {number}"} for number in range(50)),
    ]
    saved = store.memory.save_many(given)
    assert {each.id: each.version for each in saved[:3]} == {"same": 1, "changed": 2, "n/0": 1}
    assert store.memory.get("changed").content == "after"
    assert len(store.memory.search("walnut", limit=100)) == 50
    assert [each.version for each in store.memory.history("n/49")] == [1]
    with pytest.raises(InvalidInput):
        store.memory.save_many([{"id": "fine", "content": "x"}, {"id": "bad\n", "content": "x"}])
    assert store.memory.get("fine") is None
    assert store.memory.save_many([]) == []


EDITS = 40


def _edit(folder, number, reported):
    refused = 0
    with treering.open(folder) as store:
        for edit in range(EDITS):
            store.memory.update("shared", lambda text, edit=edit: f"{text}{number}:{edit}\n")
            seen = store.memory.get("count")
            try:
                store.memory.save("count", str(int(seen.content) + 1), if_version=seen.version)
            except Conflict:
                refused += 1
    reported.put(refused)


def test_concurrent_writers_lose_no_update_and_no_conflict(tmp_path):
    folder = tmp_path / "store"
    with treering.open(folder) as store:
        store.memory.save("count", "0")
    spawn = multiprocessing.get_context("spawn")
    reported = spawn.Queue()
    workers = [spawn.Process(target=_edit, args=(folder, number, reported)) for number in range(3)]
    for worker in workers:
        worker.start()
    refused = sum(reported.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    with treering.open(folder) as store:
        lines = store.memory.get("shared").content.splitlines()
        assert sorted(lines) == sorted(f"{number}:{edit}" for number in range(3) for edit in range(EDITS))
        assert int(store.memory.get("count").content) + refused == 3 * EDITS
        assert [each.version for each in store.memory.history("shared")] == list(range(3 * EDITS, 0, -1))
        assert store.verify().ok
    with sqlite3.connect(folder / "treering.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
