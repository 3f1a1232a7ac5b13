"""What a user holds says what it is, in a terminal and in a notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import treering
from treering.approvals.approvals import Approval
from treering.effects.effects import Effect
from treering.limits.alerts import Alert
from treering.maintenance.audit import Seal
from treering.replays.steps import Step
from treering.runs.follow import LiveEvent
from treering.runs.listing import RunRecord
from treering.runs.run import RunInfo
from treering.runs.search import Hit
from treering.runs.timeline import TimelineEvent
from treering.schedules.tasks import OccurrenceReport, Task
from treering.state.state import StateChange, StateEntry
from treering.threads.checkpoint import CheckpointRecord
from treering.threads.directory import ThreadInfo
from treering.threads.partial import PartialReply
from treering.workspaces.workspace import SnapshotInfo

EVIL = "<script>alert('x')</script>"


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


class Seen(HTMLParser):
    """The tags and the text of a document."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:  # noqa: ARG002
        self.tags.add(tag)

    def handle_data(self, data) -> None:
        self.text += data + " "


def seen(value) -> Seen:
    parsed = Seen()
    parsed.feed(value._repr_html_())
    parsed.close()
    return parsed


def test_nothing_that_a_user_holds_is_an_address_in_memory(store):
    thread = store.thread("alice")
    saved = thread.append({"role": "user", "content": "hi"})
    with store.run("planner", thread=thread) as run, run.tool("search") as span:
        pass
    store.flush()
    held = [
        *(store, thread, saved, run, span, store.runs, store.cost, store.timeline, store.memory, store.state),
        *(
            store.schedules,
            store.workspace,
            store.effects,
            store.approvals,
            store.runs.get(run.id),
            run.cost(),
        ),
        thread.diff(saved, saved),
    ]
    for each in held:
        assert not re.search(r" object at 0x[0-9a-f]+", repr(each)), repr(each)
    assert repr(span) == f"Span('search', kind='tool', ok, run={run.id!r})"
    assert repr(run) == f"Run({run.id!r}, agent='planner', status='ok')"


def test_runs_threads_costs_and_diffs_are_tables_in_a_notebook(store):
    thread = store.thread("alice")
    before = thread.append({"role": "user", "content": "Where is it?"}, state={"step": 1})
    with store.run("planner", thread=thread) as run:
        run.message("assistant", "Here.", model="gpt-5", usage={"input": 412, "output": 96})
    after = thread.append({"role": "assistant", "content": "Here."}, state={"step": 2})
    store.flush()
    shown = [
        (thread, ("Thread('alice')", "Here.", after.short_id)),
        (run, (run.id, "planner", "ok")),
        (store.runs.get(run.id), (run.id, "alice")),
        (run.cost(), ("508", "0.001475000 USD", "gpt-5", "total")),
        (store.cost.of_run(run.id), ("planner", "508")),
        (store.cost.of_run(run.id).total, ("total", "0.001475000 USD")),
        (thread.diff(before, after), ("message added", "Here.", "state replace", "/step")),
    ]
    for value, texts in shown:
        found = seen(value)
        assert {"table", "caption", "tr"} <= found.tags
        for text in texts:
            assert text in found.text, (type(value), text, found.text)


def test_what_an_agent_wrote_never_becomes_markup(store):
    thread = store.thread("alice")
    before = thread.append({"role": "user", "content": EVIL}, state={"x": EVIL}, note=EVIL)
    with store.run(EVIL, thread=thread, tags=[EVIL], meta={"x": EVIL}) as run:
        run.message("assistant", EVIL, model=EVIL, usage={"input": 1})
    after = thread.append({"role": "user", "content": EVIL * 100}, state={"x": EVIL + "!"})
    store.flush()
    for value in (thread, run, store.runs.get(run.id), run.cost(), thread.diff(before, after)):
        found = seen(value)
        assert "script" not in found.tags
        assert "<script>" in found.text


HELD = [
    Alert, Approval, CheckpointRecord, Effect, Hit, LiveEvent, OccurrenceReport, PartialReply, RunInfo,
    RunRecord, Seal, SnapshotInfo, StateChange, StateEntry, Step, Task, ThreadInfo, TimelineEvent,
]  # fmt: skip


@pytest.mark.parametrize("held", HELD, ids=lambda held: held.__name__)
def test_each_time_in_microseconds_has_a_readable_twin(held):
    times = [each for each in held.__struct_fields__ if re.search(r"(^ts|_at|^last_run|^next_run)_us$", each)]
    assert times
    missing = [each for each in times if not hasattr(held, each.removesuffix("_us"))]
    assert missing == []
