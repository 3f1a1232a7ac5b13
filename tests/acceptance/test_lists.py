"""Lists are read in pages by every filter; a page is behind the one before it, whatever changes meanwhile."""

from __future__ import annotations

import pytest

import treering
from treering.errors import NotFound
from treering.threads import directory


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else tmp_path / "store"
    with treering.open(url) as opened:
        yield opened


def pages(read, *, first=3, items):
    """Read all pages, and return what is in them."""
    found, cursor = [], None
    while True:
        page = read(first=first, cursor=cursor)
        found += getattr(page, items)
        cursor = page.cursor
        if cursor is None:
            return found


def test_threads_are_listed_by_their_last_change_in_one_namespace_or_all(store):
    for number in range(10):
        store.thread(f"chat-{number}", namespace=("", "bob")[number % 2]).append("x")
    store.thread("chat-0").append("again")

    def ids(**filters):
        read = lambda **page: store.thread_page(**filters, **page)  # noqa: E731
        found = [each.id for each in pages(read, items="threads")]
        assert found == [each.id for each in store.threads(**filters)]
        return found

    assert ids() == ["chat-0", "chat-8", "chat-6", "chat-4", "chat-2"]
    assert ids(namespace="bob") == [f"chat-{number}" for number in (9, 7, 5, 3, 1)]
    assert ids(namespace=None) == ["chat-0", *(f"chat-{number}" for number in range(9, 0, -1))]
    assert ids(namespace=None, containing="AT-8") == ["chat-8"]
    assert ids(namespace=None, prefix="chat-", containing="3") == ["chat-3"]
    assert ids(prefix="chat-") == ids()
    assert ids(prefix="nothing") == []


def test_a_page_of_filtered_threads_reads_only_so_many(store, monkeypatch):
    monkeypatch.setattr(directory, "_MAX_SCANNED", 4)
    monkeypatch.setattr(directory, "_SCANNED_AT_ONCE", 2)
    for number in range(12):
        store.thread(f"{('rare', 'common')[number > 0]}-{number}").append("x")
    page = store.thread_page(containing="rare")
    assert page.threads == ()
    assert page.cursor is not None
    assert [each.id for each in store.threads(containing="rare")] == ["rare-0"]
    assert [each.id for each in store.threads(prefix="common-1")] == ["common-11", "common-10", "common-1"]
    assert [each.id for each in store.threads(prefix="common-")] == [
        f"common-{number}" for number in range(11, 0, -1)
    ]


def test_a_page_continues_where_the_last_one_ended_although_a_thread_changed(store):
    for number in range(4):
        store.thread(f"t{number}").append("x")
    first = store.thread_page(first=2)
    store.thread("t0").append("moves to the front")
    rest = store.thread_page(first=2, cursor=first.cursor)
    assert [each.id for each in (*first.threads, *rest.threads)] == ["t3", "t2", "t1"]
    assert {each.id for each in directory.all_threads(store.engine, store.space, namespace="")} == {
        "t0", "t1", "t2", "t3",
    }  # fmt: skip


def test_runs_are_found_by_every_filter(store):
    for number in range(24):
        with store.run(
            agent=("planner", "coder")[number % 2],
            thread=f"t{number % 3}",
            tags=["nightly"] if number % 4 == 0 else ["adhoc", "x/y"],
            id=f"r{number:02}",
        ) as run:
            if number % 6 == 5:
                run.end(status="error")
    store.flush()
    runs = list(store.runs.each())
    assert [run.id for run in runs] == [f"r{number:02}" for number in range(23, -1, -1)]
    for filters in (
        {"agent": "coder"},
        {"status": "error"},
        {"agent": "coder", "status": "ok"},
        {"thread": "t1"},
        {"thread": "t1", "agent": "planner", "status": "ok"},
        {"tag": "nightly"},
        {"tag": "x/y", "status": "error"},
        {"tag": "nightly", "agent": "coder"},
        {"tag": "nobody's"},
        {"since_us": runs[10].started_at_us, "until_us": runs[2].started_at_us},
        {"tag": "adhoc", "thread": "t2", "since_us": runs[10].started_at_us},
    ):
        expected = [
            run.id
            for run in runs
            if run.agent == filters.get("agent", run.agent)
            and run.status == filters.get("status", run.status)
            and run.thread == filters.get("thread", run.thread)
            and ("tag" not in filters or filters["tag"] in run.tags)
            and filters.get("since_us", 0) <= run.started_at_us < filters.get("until_us", 2**62)
        ]
        found = pages(lambda filters=filters, **page: store.runs.page(**filters, **page), items="runs")
        assert [run.id for run in found] == expected, filters


def test_a_run_that_ended_is_no_longer_listed_as_running(store):
    run = store.run(agent="a", id="r", tags=["t"]).start()
    store.flush()
    assert [each.id for each in store.runs.page(status="running").runs] == ["r"]
    run.end()
    store.flush()
    assert store.runs.page(status="running").runs == ()
    assert [each.id for each in store.runs.page(status="ok", tag="t").runs] == ["r"]


def test_a_forgotten_run_is_in_no_list(store):
    with store.run(agent="a", id="kept", tags=["t"]):
        pass
    with store.run(agent="a", id="gone", thread="alice", tags=["t"]):
        pass
    store.flush()
    store.forget(thread="alice")
    assert [each.id for each in store.runs.page(tag="t").runs] == ["kept"]
    assert [each.id for each in store.runs.page(agent="a").runs] == ["kept"]
    with pytest.raises(NotFound):
        store.runs.load("gone")


def test_a_copy_lists_the_same(store, tmp_path):
    for number in range(5):
        store.thread(f"t{number}", namespace="bob").append("x")
        with store.run(agent="a", id=f"r{number}", tags=["t"]):
            pass
    store.flush()
    with treering.open(tmp_path / "copy") as copy:
        for part in store.engine.export(store.space):
            copy.engine.load(copy.space, part)
        for filters in ({}, {"agent": "a", "status": "ok"}, {"tag": "t"}):
            assert copy.runs.page(**filters) == store.runs.page(**filters)
        assert copy.thread_page(namespace=None) == store.thread_page(namespace=None)


def test_tasks_are_listed_by_their_creation(store):
    tasks = [store.schedules.schedule_task(f"task {number}", "interval", 60) for number in range(8)]
    store.schedules.cancel_task(tasks[2].id)
    store.schedules.pause(tasks[5].id)
    open_ids = [task.id for number, task in enumerate(tasks) if number != 2]
    assert [task.id for task in pages(store.schedules.task_page, items="tasks")] == open_ids
    everything = pages(lambda **page: store.schedules.task_page(all=True, **page), items="tasks")
    assert [task.id for task in everything] == [task.id for task in tasks]


def test_snapshots_are_listed_newest_first_of_one_folder_or_all(store, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(7):
        (folder / "a.txt").write_text(f"{number}")
        store.workspace.snapshot(folder, name=("one", "two")[number % 2], note=f"{number}")
    notes = [each.note for each in pages(store.workspace.snapshot_page, items="snapshots")]
    assert notes == ["6", "5", "4", "3", "2", "1", "0"]
    of_two = pages(lambda **page: store.workspace.snapshot_page(name="two", **page), items="snapshots")
    assert [each.note for each in of_two] == ["5", "3", "1"]
    assert [each.note for each in store.workspace.snapshots(last=2)] == ["6", "5"]


def test_memory_is_listed_by_id_with_any_filter(store):
    for number in range(9):
        store.memory.save(f"doc-{number}", "text", tags=["odd"] if number % 2 else [], auto_load=number == 4)
        store.memory.in_namespace(f"user-{number}").save("theirs", "x")

    def ids(**filters):
        found = pages(lambda **page: store.memory.page(**filters, **page), items="documents")
        assert found == store.memory.query(**filters)
        return [each.id for each in found]

    assert ids() == [f"doc-{number}" for number in range(9)]
    assert ids(tags=["odd"]) == [f"doc-{number}" for number in (1, 3, 5, 7)]
    assert ids(auto_load=True) == ["doc-4"]
    assert ids(prefix="doc-3") == ["doc-3"]
    assert list(store.memory.namespaces(after="user-6")) == ["user-7", "user-8"]


def test_runs_are_listed_by_their_start(store):
    older = store.run(agent="a", id="older").start()
    with store.run(agent="a", id="newer"):
        pass
    older.end()
    store.flush()
    assert [each.id for each in store.runs.each()] == ["newer", "older"]
