"""agent-sdk: memory stores, documents, middleware, and checkpoints beside them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import treering
from tests.agent.scripted import Scripted, said, user
from treering.agent import create_agent
from treering.compat import savers
from treering.compat.memory import (
    FilesystemMemoryStore,
    InMemoryMemoryStore,
    MemoryDocument,
    MemoryFileWarning,
    create_agent_memory_middleware,
    load_agent_memory,
)
from treering.errors import InvalidInput

METADATA = st.fixed_dictionaries(
    {},
    optional={
        "tags": st.lists(st.sampled_from(["a", "b"]), unique=True),
        "auto_load": st.booleans(),
        "flag": st.booleans() | st.none(),
        "number": st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False),
        "when": st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
        "words": st.lists(st.sampled_from(["", "no", "0", "null", "1e5"])),
    },
)

STORES = {
    "files": lambda folder: FilesystemMemoryStore(root_dir=folder / ".agent" / "memory"),
    "memory": lambda _: InMemoryMemoryStore(),
}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


def test_all_memory_of_an_agent_is_loaded(store):
    assert load_agent_memory(store=store, agent_id="my-agent") == []
    store.save({"id": "house-rules", "content": "for everyone"})
    store.save({"id": "my-agent/notes", "content": "its own"})
    store.save({"id": "facts", "content": "its own too", "metadata": {"agent_id": "my-agent"}})
    store.save({"id": "other-agent/notes", "content": "not its own"})
    store.save({"id": "secret", "content": "not its own either", "metadata": {"agent_id": "other-agent"}})
    store.save(
        {"id": "over", "content": "x", "metadata": {"expires_at": datetime.now(UTC) - timedelta(seconds=1)}}
    )
    memory = load_agent_memory(store=store, agent_id="my-agent")
    assert [document.id for document in memory] == ["facts", "house-rules", "my-agent/notes"]


def test_a_file_with_front_matter_round_trips_without_loss(tmp_path):
    store = FilesystemMemoryStore(root_dir=tmp_path)
    written = """\
---
# by hand
tags: [a,  b]   # two
custom: {x: 1}
auto_load: true
created_at: 2026-01-02T03:04:05Z
---

Body with *marks*.
"""
    file = tmp_path / "by-hand.md"
    file.write_text(written)
    document = store.get("by-hand")
    assert document.content == "\nBody with *marks*.\n"
    assert (document.tags, document.metadata["custom"]) == (["a", "b"], {"x": 1})
    before = file.stat()
    assert store.save(document) == document
    assert (file.read_text(), file.stat().st_mtime_ns) == (written, before.st_mtime_ns)
    store.save({"id": "by-hand", "content": document.content, "metadata": document.metadata | {"custom": 2}})
    lines = file.read_text().splitlines()
    assert lines[:7] == [
        "---",
        "# by hand",
        "tags: [a,  b]   # two",
        "custom: 2",
        "auto_load: true",
        "created_at: 2026-01-02T03:04:05Z",
        lines[6],
    ]
    assert lines[6].startswith("updated_at: ")
    assert [path.name for path in tmp_path.iterdir()] == ["by-hand.md"]


def test_an_invalid_file_is_named_and_does_not_affect_others(tmp_path):
    store = FilesystemMemoryStore(root_dir=tmp_path)
    store.save({"id": "fine", "content": "x"})
    (tmp_path / "broken.md").write_text("---\ntags: [a\n---\n")
    with pytest.warns(MemoryFileWarning, match=r"broken\.md: the front matter is not valid YAML"):
        assert [document.id for document in store.query()] == ["fine"]
    with pytest.raises(InvalidInput, match=r"broken\.md"):
        store.get("broken")
    with pytest.raises(InvalidInput):
        store.save({"id": "broken", "content": "would lose what is there"})
    assert (tmp_path / "broken.md").read_text() == "---\ntags: [a\n---\n"


def test_the_documented_example(store):
    store.save(
        {
            "id": "note-1",
            "content": "Important information...",
            "metadata": {"tags": ["important"], "autoLoad": True},
        }
    )
    store.save(MemoryDocument(id="note-2", content="Less so.", metadata={"tags": ["other"]}))
    notes = store.query(tags=["important"])
    assert [(note.id, note.content, note.auto_load) for note in notes] == [
        ("note-1", "Important information...", True)
    ]
    assert store.query(tags=["important", "other"], match="all") == []
    assert store.delete("note-1")
    assert not store.delete("note-1")
    assert store.get("note-1") is None
    assert [note.id for note in store.query()] == ["note-2"]


def test_the_async_api(store):
    async def scene():
        await store.asave({"id": "a", "content": "x", "metadata": {"tags": ["t"]}})
        assert (await store.aget("a")).content == "x"
        assert len(await store.aquery(tags=["t"])) == 1
        assert await store.adelete("a")

    asyncio.run(scene())


def test_a_document_keeps_its_times_and_custom_metadata(store):
    expires = datetime(2100, 5, 6, 7, 8, 9, tzinfo=UTC)
    saved = store.save(
        {
            "id": "full",
            "content": "text",
            "metadata": {
                "tags": ["x"],
                "auto_load": False,
                "expires_at": expires,
                "any": {"deep": [1, "a", None]},
            },
        }
    )
    found = store.get("full")
    assert found == saved
    assert found.expires_at == expires
    assert found.metadata["any"] == {"deep": [1, "a", None]}
    assert found.created_at <= found.updated_at
    changed = store.save({"id": "full", "content": "other", "metadata": found.metadata})
    assert changed.created_at == found.created_at
    assert changed.metadata["any"] == {"deep": [1, "a", None]}


def test_empty_values_and_fractions_of_a_second_are_kept(store):
    moment = datetime(2100, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    metadata = {
        "tags": [], "auto_load": False, "expires_at": moment, "created_at": moment, "when": moment,
        "no": False, "zero": 0, "nothing": None, "empty": [], "blank": "", "fields": {}, "ratio": 0.0,
    }  # fmt: skip
    store.save({"id": "a", "content": "x", "metadata": metadata})
    found = store.get("a")
    assert {key: found.metadata[key] for key in metadata} == metadata
    assert [type(found.metadata[key]) for key in ("no", "zero", "ratio")] == [bool, int, float]
    store.save({"id": "a", "content": "x", "metadata": {"no": False}})
    assert "zero" not in store.get("a").metadata, "metadata is replaced as a whole"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=METADATA, second=METADATA)
def test_any_metadata_reads_back_from_a_file(tmp_path, first, second):
    store = FilesystemMemoryStore(root_dir=tmp_path)
    for metadata in (first, second):
        store.save({"id": "a", "content": "x", "metadata": metadata})
        found = FilesystemMemoryStore(root_dir=tmp_path).get("a").metadata
        assert {key: found[key] for key in found if key not in {"created_at", "updated_at"}} == metadata


class AwaitedStore:
    """A user's own memory store."""

    async def query(self):
        await asyncio.sleep(0)
        return [{"id": "a", "content": "Alice likes walnuts.", "metadata": {"autoLoad": True}}]


class GeneratingStore:
    async def query(self):
        yield MemoryDocument(id="a", content="Alice likes walnuts.", metadata={"auto_load": True})


@pytest.mark.parametrize("own", [AwaitedStore(), GeneratingStore()])
def test_a_users_own_async_store_works_in_the_middleware(own):
    model = Scripted(said("one"), said("two"))
    agent = create_agent(model=model, middleware=[create_agent_memory_middleware(store=own)])
    agent.generate(prompt="Hi")
    asyncio.run(agent.agenerate(prompt="Hi"))
    assert ["walnuts" in messages[0]["content"] for messages in model.seen] == [True, True]
    assert [each.id for each in load_agent_memory(store=own, agent_id="x")] == ["a"]


def test_the_middleware_loads_by_flag_limit_and_filter(store):
    now = datetime.now(UTC)
    documents = {
        "a": {"autoLoad": True},
        "b": {"autoLoad": True, "expiresAt": now - timedelta(days=1)},
        "c": {"autoLoad": True, "expiresAt": now + timedelta(days=1)},
        "d": {"autoLoad": False},
        "e": {"autoLoad": True, "private": True},
        "f": {"autoLoad": True},
    }
    for name, metadata in documents.items():
        store.save({"id": name, "content": f"document {name}", "metadata": metadata})
    memory = create_agent_memory_middleware(
        store=store,
        auto_load=True,
        max_documents=2,
        filter=lambda doc: (not doc.expires_at or doc.expires_at > now) and not doc.metadata.get("private"),
    )
    model = Scripted(said("Hello."))
    create_agent(model=model, middleware=[memory]).generate(prompt="Hi")
    (system, asked) = model.seen[0]
    assert system["role"] == "system"
    assert asked == user("Hi")
    assert [name for name in documents if f"document {name}" in system["content"]] == ["a", "c"]
    assert [(each.id, each.reason) for each in memory.last.omitted] == [("f", "max_documents")]


def test_an_edit_takes_effect_with_the_next_call_and_is_not_stored_in_the_thread(store):
    model = Scripted(said("one"), said("two"))
    with treering.open("memory:") as kept:
        agent = create_agent(
            model=model,
            checkpointer=kept,
            middleware=[create_agent_memory_middleware(store=store)],
        )
        agent.generate(prompt="first", thread_id="t")
        store.save({"id": "x", "content": "learned since", "metadata": {"autoLoad": True}})
        agent.generate(prompt="second", thread_id="t")
        assert [message["role"] for message in model.seen[0]] == ["user"]
        assert "learned since" in model.seen[1][0]["content"]
        assert all(message["role"] != "system" for message in kept.thread("t").load().messages)


def test_the_middleware_accepts_the_memory_of_an_async_store(tmp_path):
    async def scene():
        async with treering.open_async(tmp_path / "store") as kept:
            await kept.memory.save("a", "remembered", auto_load=True)
            model = Scripted(said("Hello."))
            agent = create_agent(model=model, middleware=[create_agent_memory_middleware(store=kept.memory)])
            await agent.agenerate(prompt="Hi")
            assert "remembered" in model.seen[0][0]["content"]

    asyncio.run(scene())


def test_the_middleware_rejects_what_is_not_a_store():
    with pytest.raises(InvalidInput, match="query"):
        create_agent_memory_middleware(store=object())


def test_memory_and_checkpoints_together(tmp_path):
    memory_store = FilesystemMemoryStore(root_dir=tmp_path / ".agent" / "memory")
    checkpointer = savers.FileSaver(tmp_path / ".agent" / "checkpoints")
    model = Scripted(said("Noted."), said("Done."))
    agent = create_agent(
        model=model,
        checkpointer=checkpointer,
        middleware=[create_agent_memory_middleware(store=memory_store, auto_load=True)],
    )
    memory_store.save(
        {
            "id": "user-preference-1",
            "content": "User prefers concise responses",
            "metadata": {"autoLoad": True},
        }
    )
    agent.generate(prompt="Hi", thread_id="chat")
    again = create_agent(
        model=model,
        checkpointer=savers.FileSaver(tmp_path / ".agent" / "checkpoints"),
        middleware=[
            create_agent_memory_middleware(
                store=FilesystemMemoryStore(root_dir=tmp_path / ".agent" / "memory"), auto_load=True
            )
        ],
    )
    again.generate(prompt="And now?", thread_id="chat")
    shown = model.seen[1]
    assert "User prefers concise responses" in shown[0]["content"]
    assert [message["content"] for message in shown[1:]] == ["Hi", "Noted.", "And now?"]
