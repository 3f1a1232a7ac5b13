"""Migration from any saver to any other: whole histories, resumable, nothing twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

import treering
from tests.compat.savers.savers_under_test import PlainStore, kinds, place, say, talk
from treering.compat.savers import (
    FileSaver,
    KeyValueStoreSaver,
    MemorySaver,
    SqliteSaver,
    amigrate_checkpoints,
    migrate_checkpoints,
)
from treering.errors import InvalidInput

SOURCES = ["memory", "files", "a user's async store"]
DESTINATIONS = ["memory", "sqlite", "postgres", "files", "redis", "dict", "a user's async store"]


def fill(saver):
    """Threads with all that a checkpoint can hold, a long one, and one whose past was changed."""
    talk(saver, "plain", steps=3)
    talk(saver, "long/thread", steps=18)
    saver.save(
        thread_id="rich",
        messages=[say("a"), {"role": "tool", "data": b"\0", "pair": (1, 2)}],
        state={"todos": [1], "files": {f"f{number}": str(number) * 3000 for number in range(3)}},
        metadata={"user": "1"},
        note="note",
        tags=("x", "y"),
        step=7,
    )
    saver.save(thread_id="rich", messages=[say("changed")])
    saver.interrupt("rich", {"tool": "rm"}, interrupt_id="i1")


def everything(saver):
    return {
        each.thread_id: [one.to_dict() | {"namespace": ""} for one in saver.list(each.thread_id)]
        for each in saver.list()
    }


@pytest.mark.parametrize("to", kinds(DESTINATIONS))
@pytest.mark.parametrize("origin", SOURCES)
def test_whole_histories_arrive_as_they_were(origin, to, request, tmp_path_factory):
    source = place(origin, request).open()
    fill(source)
    before = everything(source)
    made = place(to, request) if to != origin else elsewhere(to, request, tmp_path_factory)
    destination = made.open()
    seen = []
    report = migrate_checkpoints(source=source, destination=destination, on_progress=seen.append)
    assert report.ok, report.failed
    assert (report.threads, report.checkpoints, report.present) == (3, 24, 0)
    assert (report.skipped, report.changed, report.failed) == (0, 0, {})
    assert everything(destination) == before == everything(source)
    assert [each.checkpoints for each in seen] == list(range(1, 25))
    again = migrate_checkpoints(source=source, destination=destination)
    assert (again.threads, again.checkpoints, again.present) == (3, 0, 24)
    source.save(thread_id="plain", messages=[say("later")])
    late = migrate_checkpoints(source=source, destination=destination)
    assert (late.checkpoints, late.present) == (1, 24)
    assert everything(destination) == everything(source)
    destination.save(thread_id="plain", messages=[say("later"), say("here")])
    assert destination.load("plain").step == 4
    destination.close()
    source.close()


def elsewhere(kind, request, tmp_path_factory):
    """Another place of the same kind."""
    if kind == "files":
        folder = tmp_path_factory.mktemp("other")
        return type("Other", (), {"open": lambda _self: FileSaver(folder, None)})()
    return place(kind, request)


def test_the_documents_own_example(tmp_path):
    old_store, new_store = MemorySaver(), FileSaver(tmp_path)
    talk(old_store)
    report = migrate_checkpoints(
        source=old_store,
        destination=new_store,
        transform=lambda checkpoint: {
            **checkpoint.to_dict(),
            "metadata": {**checkpoint.metadata, "migrated_at": "2026-11-16"},
        },
    )
    assert (report.checkpoints, report.changed) == (5, 5)
    assert new_store.load("conversation-1").metadata == {"step": 4, "migrated_at": "2026-11-16"}
    assert new_store.load("conversation-1").messages == old_store.load("conversation-1").messages


def test_transform_changes_leaves_out_and_renames():
    source, kept = MemorySaver(), PlainStore()
    fill(source)

    async def transform(checkpoint):
        await asyncio.sleep(0)
        if checkpoint.step % 2:
            return None
        if checkpoint.thread_id == "plain":
            return checkpoint.replace(thread_id="renamed", messages=[*checkpoint.messages, say("end")])
        return checkpoint

    def run():
        return migrate_checkpoints(
            source=source, destination=KeyValueStoreSaver(kept, namespace="new"), transform=transform
        )

    first = run()
    assert first.ok, first.failed
    assert (first.checkpoints, first.skipped, first.changed) == (12, 12, 2)
    destination = KeyValueStoreSaver(kept, namespace="new")
    assert {each.thread_id for each in destination.list()} == {"renamed", "long/thread", "rich"}
    history = list(destination.list("renamed"))
    assert [each.step for each in history] == [2, 0]
    assert history[0].parent_id == history[1].id
    assert history[0].messages[-1] == say("end")
    second = run()
    assert (second.checkpoints, second.present) == (0, 12)


def test_two_tenants_of_one_store_can_be_migrated_into_each_other():
    with treering.open("memory:") as store:
        alice, bob = MemorySaver(store, namespace="alice"), MemorySaver(store, namespace="bob")
        fill(alice)
        assert migrate_checkpoints(source=alice, destination=bob).checkpoints == 24
        assert migrate_checkpoints(source=alice, destination=bob).checkpoints == 0
        theirs = {each.id for each in alice.list("long/thread")}
        assert theirs.isdisjoint(each.id for each in bob.list("long/thread"))
        assert [each.messages for each in bob.list("long/thread")] == [
            each.messages for each in alice.list("long/thread")
        ]
        assert store.verify().ok


def test_a_fork_keeps_its_parent(tmp_path):
    source = MemorySaver()
    talk(source)
    source.fork("conversation-1", "fork")
    source.save(thread_id="fork", messages=[say("elsewhere")])  # saved last, and so listed first
    for destination in (FileSaver(tmp_path), MemorySaver()):
        report = migrate_checkpoints(source=source, destination=destination)
        assert report.ok, report.failed
        assert len(list(destination.list("fork"))) == 2
        first = list(destination.list("fork"))[-1]
        assert first.parent_id == first.metadata["forked_from"] == source.load("conversation-1").id


def test_a_thread_with_another_history_is_left_alone():
    source, destination = MemorySaver(), KeyValueStoreSaver(PlainStore())
    talk(source, "mine")
    talk(source, "taken")
    talk(destination, "taken", steps=2)
    before = everything(destination)["taken"]
    report = migrate_checkpoints(source=source, destination=destination)
    assert not report.ok
    assert list(report.failed) == ["taken"]
    assert "different history" in report.failed["taken"]
    assert everything(destination)["taken"] == before
    assert everything(destination)["mine"] == everything(source)["mine"]


def test_one_bad_thread_does_not_stop_the_others():
    kept = PlainStore()
    source = KeyValueStoreSaver(kept)
    for name in ("a", "b", "c", "d"):
        talk(source, name, steps=2)
    kept["checkpoints/head/a"] = "broken"
    del kept[next(key for key in kept if key.startswith("checkpoints/data/b/m-"))]

    def transform(checkpoint):
        if checkpoint.thread_id == "c":
            raise ValueError("cannot be changed")
        return checkpoint

    destination = MemorySaver()
    report = migrate_checkpoints(source=source, destination=destination, transform=transform)
    assert len(report.failed) == 3
    assert "'a'" in report.failed["unreadable 1"]
    assert "missing" in report.failed["b"]
    assert report.failed["c"] == "ValueError: cannot be changed"
    assert [each.thread_id for each in destination.list()] == ["d"]


def test_retention_of_the_destination_holds(tmp_path):
    source, destination = MemorySaver(), FileSaver(tmp_path, max_checkpoints=4)
    messages = talk(source, steps=12)
    assert migrate_checkpoints(source=source, destination=destination).checkpoints == 12
    assert [each.step for each in destination.list("conversation-1")] == [11, 10, 9, 8]
    assert destination.load("conversation-1").messages == messages
    assert migrate_checkpoints(source=source, destination=destination).checkpoints == 0


def test_a_source_that_drops_its_past_can_still_catch_up():
    source, destination = KeyValueStoreSaver(PlainStore(), keep=treering.Keep(last=3)), MemorySaver()
    talk(source, steps=5)
    migrate_checkpoints(source=source, destination=destination)
    for step in range(3):
        source.save(thread_id="conversation-1", messages=[say(f"later {step}")])
    assert migrate_checkpoints(source=source, destination=destination).ok
    assert [each.step for each in destination.list("conversation-1")] == [7, 6, 5, 4, 3, 2]


def test_a_saver_is_not_migrated_into_itself():
    saver = MemorySaver()
    with pytest.raises(InvalidInput, match="same"):
        migrate_checkpoints(source=saver, destination=saver)


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"tags": ["a", 1]}, "tags has 1"),
        ({"step": "12"}, "step='12'"),
        ({"messages": "Hi"}, "messages is a str"),
        ({"state": {1: 2}}, "state has the name 1"),
    ],
)
@pytest.mark.parametrize("make", [MemorySaver, lambda: KeyValueStoreSaver(PlainStore())])
def test_a_transform_cannot_create_an_invalid_checkpoint(make, change, problem):
    source, destination = MemorySaver(), make()
    talk(source, "t", 2)
    report = migrate_checkpoints(source=source, destination=destination, transform=lambda _: change)
    assert problem in report.failed["t"]
    assert destination.load("t") is None


def test_an_invalid_transform_result_is_reported():
    source = MemorySaver()
    talk(source, "t")
    report = migrate_checkpoints(source=source, destination=MemorySaver(), transform=lambda _: 7)
    assert "transform returned a int" in report.failed["t"]


def test_a_migration_can_be_awaited(request):
    source, destination = place("a user's async store", request).open(), place("memory", request).open()
    talk(source)

    async def main():
        report = await amigrate_checkpoints(source=source, destination=destination)
        assert report.checkpoints == 5
        assert (await destination.aload("conversation-1")).step == 4

    asyncio.run(main())


MIGRATOR = """
import sys
from treering.compat.savers import FileSaver, SqliteSaver, migrate_checkpoints
source, kind, folder = sys.argv[1:]
destination = FileSaver(folder, None) if kind == "files" else SqliteSaver(folder, durability="fast")
def told(progress):
    print(progress.checkpoints, flush=True)
report = migrate_checkpoints(source=SqliteSaver(source), destination=destination, on_progress=told)
assert report.ok, report.failed
"""


@pytest.mark.faults
@pytest.mark.parametrize(
    "kind, failpoint, hits",
    [
        ("files", "file.renamed", (3, 8, 20)),
        ("files", "file.synced", (2, 9)),
        ("sqlite", "commit.before_commit", (1, 4, 20)),
        ("sqlite", "commit.after_commit", (2, 5)),
    ],
)
def test_a_killed_migration_is_resumed_and_writes_nothing_twice(kind, failpoint, hits, tmp_path):
    with SqliteSaver(tmp_path / "source", durability="fast") as source:
        fill(source)
        before = everything(source)
    command = [sys.executable, "-c", MIGRATOR, str(tmp_path / "source"), kind, str(tmp_path / "copy")]
    told = []
    for hit in hits:
        victim = subprocess.run(
            command,
            env=os.environ | {"TREERING_FAILPOINTS": f"{failpoint}=kill:{hit}"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
        assert victim.returncode == -signal.SIGKILL
        told.append(len(victim.stdout.splitlines()))
    assert sum(told) < 24
    destination = FileSaver(tmp_path / "copy", None) if kind == "files" else SqliteSaver(tmp_path / "copy")
    with SqliteSaver(tmp_path / "source") as source, destination:
        report = migrate_checkpoints(source=source, destination=destination)
        assert report.ok, report.failed
        assert report.checkpoints + report.present == 24
        assert report.present >= sum(told)
        assert report.checkpoints > 0
        assert everything(destination) == before


@pytest.mark.parametrize("wrong", [{}, None, "folder", 3])
def test_what_is_no_saver_is_named(wrong):
    saver = MemorySaver()
    for source, destination, name in ((wrong, saver, "source"), (saver, wrong, "destination")):
        with pytest.raises(InvalidInput, match=f"^{name} is of type {type(wrong).__name__}; pass a saver"):
            migrate_checkpoints(source=source, destination=destination)
