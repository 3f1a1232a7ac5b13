"""State: values by key, compare-and-swap, history, watching, mappings."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from threading import Thread

import pytest

import treering
from treering.core.clock import ManualClock
from treering.engines.memory.engine import MemoryEngine
from treering.errors import Conflict, InvalidInput, RefMoved, Unencodable
from treering.store import Store


def test_a_value_round_trips(store):
    value = {"b": [1, 2.5, None, True], "a": "text", "when": datetime(2026, 2, 24, tzinfo=UTC)}
    store.state.set("telegram/123/settings", value)
    assert store.state.get("telegram/123/settings") == value
    assert list(store.state.get("telegram/123/settings")) == ["b", "a", "when"]
    assert store.state.get("nothing") is None
    assert store.state.get("nothing", 7) == 7


def test_null_is_a_value(store):
    store.state.set("key", None)
    assert store.state.get("key", "default") is None
    assert store.state.entry("key").version == 1
    assert store.state.entry("other") is None


def test_a_large_value_survives_gc_while_the_history_refers_to_it(store):
    large = {"text": "x" * 200_000}
    store.state.set("large", large)
    store.gc(grace_seconds=0)
    assert store.state.get("large") == large
    store.state.set("large", 1)
    assert [change.value for change in store.state.history("large")] == [1, large]
    assert store.verify().ok


def test_a_write_against_an_older_version_raises(store):
    first = store.state.set("key", "a", if_version=0)
    with pytest.raises(RefMoved, match="'key' is at version 1, expected version 0"):
        store.state.set("key", "b", if_version=0)
    second = store.state.set("key", "b", if_version=first.version)
    with pytest.raises(RefMoved, match="is at version 2, expected version 1"):
        store.state.delete("key", if_version=first.version)
    assert store.state.get("key") == "b"
    assert store.state.delete("key", if_version=second.version)
    with pytest.raises(RefMoved, match="does not exist, expected version 2"):
        store.state.set("key", "c", if_version=second.version)


def test_versions_continue_after_a_deletion(store):
    store.state.set("key", 1)
    assert store.state.delete("key")
    assert not store.state.delete("key")
    assert store.state.set("key", 2).version == 3


def test_update_computes_from_the_current_value(store):
    assert store.state.update("telegram/123/resets", lambda n: n + 1, default=0) == 1
    assert store.state.update("telegram/123/resets", lambda n: n + 1, default=0) == 2


def test_an_update_that_fails_writes_nothing(store):
    store.state.set("key", 1)
    with pytest.raises(ZeroDivisionError):
        store.state.update("key", lambda n: n / 0)
    with pytest.raises(Unencodable):
        store.state.update("key", lambda _: object())
    assert store.state.entry("key").version == 1


def test_an_update_that_lost_a_race_is_computed_again(store):
    seen = []

    def slow(items):
        seen.append(list(items))
        if len(seen) == 1:
            store.state.update("key", lambda items: [*items, "other"], default=[])
        return [*items, "mine"]

    assert store.state.update("key", slow, default=[]) == ["other", "mine"]
    assert seen == [[], ["other"]]


def test_add_needs_an_integer_and_respects_the_ceiling(store):
    assert store.state.add("n") == 1
    assert store.state.add("n", 41) == 42
    assert store.state.add("n", -2) == 40
    with pytest.raises(Conflict, match=r"'n' was not changed: .* above its ceiling 41"):
        store.state.add("n", 2, ceiling=41)
    store.state.set("text", "5")
    for wrong in ("5", 1.5, True, None, [1], "x" * 5000):
        store.state.set("text", wrong)
        with pytest.raises(InvalidInput, match="not an integer"):
            store.state.add("text")
    assert store.state.get("n") == 40


def test_history_lists_every_value_with_its_version(store):
    state = store.state
    state.set("n", 5)
    state.add("n", 2)
    state.add("n", -1)
    state.set("n", "text")
    state.delete("n")
    state.add("n", 3)
    state.set("n", 10)
    state.add("n")
    assert [(each.operation, each.value, each.version) for each in state.history("n")] == [
        ("added", 11, 8),
        ("set", 10, 7),
        ("added", 3, 6),
        ("deleted", None, 5),
        ("set", "text", 4),
        ("added", 6, 3),
        ("added", 7, 2),
        ("set", 5, 1),
    ]
    state.delete("n")
    assert [each.value for each in state.history("n")][:3] == [None, 11, 10]
    assert list(state.history("never")) == []


def test_history_has_timestamps():
    clock = ManualClock()
    engine = MemoryEngine(clock=clock)
    with Store(engine, clock=clock) as store:
        store.state.set("key", 1)
        clock.advance(seconds=60)
        store.state.set("key", 2)
        newest, oldest = store.state.history("key")
        assert newest.changed_at_us - oldest.changed_at_us == 60_000_000
        assert str(oldest.changed_at) == "2023-11-14 22:13:20+00:00"


def test_keys_are_listed_by_prefix_within_a_namespace(store):
    for key in ("a/1", "a/2", "ab", "b"):
        store.state.set(key, key.upper())
    store.state.in_namespace("a").set("1", "of a")
    store.state.in_namespace("a/1").set("1", "of a/1")
    assert list(store.state.keys("a/")) == ["a/1", "a/2"]
    assert [(each.key, each.value) for each in store.state.list()] == [
        ("a/1", "A/1"),
        ("a/2", "A/2"),
        ("ab", "AB"),
        ("b", "B"),
    ]
    assert list(store.state.in_namespace("a").keys()) == ["1"]
    store.forget(namespace="a")
    assert list(store.state.in_namespace("a").keys()) == []
    assert store.state.in_namespace("a/1").get("1") == "of a/1"
    assert store.state.get("a/1") == "A/1"


def test_listing_keys_spans_pages(store):
    names = [f"k{number:04}" for number in range(501)]
    for name in names:
        store.state.add(name)
    assert list(store.state.keys()) == names


@pytest.mark.parametrize("key", ["", " ", "a\nb", "k" * 600, "/" * 300, 5])
def test_an_invalid_key_is_rejected(store, key):
    for use in (store.state.get, lambda bad: store.state.set(bad, 1), store.state.add, store.state.delete):
        with pytest.raises(InvalidInput, match="state key"):
            use(key)
    assert list(store.state.list()) == []


def test_a_forgotten_key_leaves_no_history(store):
    store.state.in_namespace("alice").set("secret", "CANARY")
    store.forget(namespace="alice")
    assert list(store.state.in_namespace("alice").history("secret")) == []


def test_watch_yields_changes_by_other_writers(store):
    writer = store.state
    watched = writer.watch("w/", seconds=30)
    first: list[treering.Store] = []
    reading = Thread(target=lambda: first.append(next(watched)))
    writer.set("w/before", 0)
    reading.start()
    # Watching starts with the first step of the iterator, so write until it has seen something.
    number = 0
    while reading.is_alive():
        number += 1
        writer.set("other", number)
        writer.set("w/key", number)
        reading.join(0.01)
    assert first[0].key == "w/key"
    writer.delete("w/key")
    while (entry := next(watched)).version:
        assert entry.key == "w/key"
    assert (entry.key, entry.value) == ("w/key", None)
    watched.close()
    assert list(writer.watch(seconds=0)) == []


def test_a_mapping_behaves_like_a_dict(store):
    counters = store.state.mapping("session_counters")
    counters["telegram_123456"] = 3
    counters.update({"telegram_789012": 1})
    assert dict(counters) == {"telegram_123456": 3, "telegram_789012": 1} == counters.all()
    assert len(counters) == 2
    assert "telegram_123456" in counters
    assert "other" not in counters
    assert 5 not in counters
    assert counters.get("other", 0) == 0
    assert counters.add("telegram_123456") == 4
    assert counters.change("list", lambda items: [*items, 1], default=[]) == [1]
    assert counters.pop("list") == [1]
    del counters["telegram_789012"]
    with pytest.raises(KeyError):
        del counters["telegram_789012"]
    with pytest.raises(KeyError):
        counters["telegram_789012"]
    assert list(counters) == ["telegram_123456"]
    assert store.state.get("session_counters/telegram_123456") == 4


def test_mappings_with_similar_names_are_separate(store):
    store.state.mapping("a")["b/c"] = 1
    store.state.mapping("a/b")["c"] = 2
    assert store.state.mapping("a").all() == {"b/c": 1}
    assert store.state.mapping("a/b").all() == {"c": 2}


def test_the_async_api(tmp_path):
    async def use():
        async with treering.open_async(tmp_path / "store") as store:
            state = store.state
            await state.set("a", 1)
            assert await state.update("a", lambda n: n + 1) == 2
            assert await asyncio.gather(*(state.add("n") for _ in range(20)))
            assert await state.get("n") == 20
            assert [entry.key async for entry in state.list()] == ["a", "n"]
            assert [change.value async for change in state.history("a")] == [2, 1]
            counters = state.mapping("counters")
            await counters.set("x", 1)
            assert await counters.all() == {"x": 1}

    asyncio.run(use())


_WRITER = """
import sys, treering
url, rounds = sys.argv[1], int(sys.argv[2])
with treering.open(url) as store:
    for _ in range(rounds):
        store.state.add("added")
        store.state.update("updated", lambda n: n + 1, default=0)
        store.state.mapping("documents").change("shared", lambda d: {**d, "n": d["n"] + 1}, default={"n": 0})
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_eight_processes_lose_no_increment(kind, request, tmp_path):
    if kind == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = str(tmp_path / "store")
    processes, rounds = 8, 25
    running = [
        subprocess.Popen([sys.executable, "-c", _WRITER, url, str(rounds)], stderr=subprocess.PIPE)
        for _ in range(processes)
    ]
    for each in running:
        _, stderr = each.communicate(timeout=120)
        assert each.returncode == 0, stderr.decode()
    with treering.open(url) as store:
        total = processes * rounds
        assert store.state.get("added") == store.state.get("updated") == total
        assert store.state.mapping("documents")["shared"] == {"n": total}
        assert [each.value for each in store.state.history("updated")] == list(range(total, 0, -1))
        assert [each.value for each in store.state.history("added")] == list(range(total, 0, -1))
        assert json.dumps(store.state.entry("added").version) == str(total)
