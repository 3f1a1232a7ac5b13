"""What a user holds says what it is, in a terminal and in a notebook."""

from __future__ import annotations

import collections.abc
import inspect
import pkgutil
import re
import sys
from datetime import UTC, datetime
from html.parser import HTMLParser
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import treering
from treering.approvals.approvals import Approval
from treering.core.text import plain
from treering.replays.fixtures import RecordedTest
from treering.schedules.tasks import Task
from treering.state.state import StateEntry
from treering.threads.chats import ChatLine
from treering.threads.compaction import Compaction

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
            store.runs.load(run.id),
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
        (store.runs.load(run.id), (run.id, "alice")),
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
    for value in (thread, run, store.runs.load(run.id), run.cost(), thread.diff(before, after)):
        found = seen(value)
        assert "script" not in found.tags
        assert "<script>" in found.text


DURATION = re.compile(r"(duration|offset|wait|late|took|busy|max|mean|p\d\d|window|interval)_us")


def test_each_time_in_microseconds_has_its_datetime():
    """Of every class that a user gets from a store, sync or async, at whatever distance."""
    held = classes_behind(treering.Store, treering.AsyncStore, RecordedTest)
    assert {Task, Approval, StateEntry, RecordedTest, Compaction, ChatLine} <= held
    times = {
        (each, name)
        for each in held
        for name in dir(each)
        if name.endswith("_us") and name[0] != "_" and name != "now_us" and not DURATION.fullmatch(name)
    }
    assert len(times) > 40
    wrong = [
        f"{each.__module__}.{each.__name__}.{name}"
        for each, name in times
        if datetime
        not in {gives(each, name.removesuffix("_us")), *get_args(gives(each, name.removesuffix("_us")))}
    ]
    assert wrong == []


def test_no_time_is_text():
    held = classes_behind(treering.Store, treering.AsyncStore, RecordedTest)
    texts = [
        f"{each.__module__}.{each.__name__}.{name}"
        for each in held
        for name in dir(each)
        if re.fullmatch(r"ts|[a-z_]+_at|(last|next)_run", name)
        and str in {gives(each, name), *get_args(gives(each, name))}
    ]
    assert texts == []


def test_times_are_in_utc_and_json_has_their_text():
    entry = StateEntry(key="k", value=1, version=1, changed_at_us=1_700_000_000_250_000)
    assert entry.changed_at == datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)
    assert plain([entry])[0]["changed_at"] == "2023-11-14T22:13:20.250000+00:00"


def classes_behind(*roots: type) -> set[type]:
    """The classes that public attributes of these classes give, and those of what they give."""
    found: set[type] = set()
    left: list[Any] = list(roots)
    while left:
        each = left.pop()
        left += [
            part
            for argument in get_args(each)
            for part in (argument if type(argument) is list else [argument])
        ]
        kind = get_origin(each) or each
        if isinstance(kind, type) and kind not in found and kind.__module__.startswith(DOMAINS):
            found.add(kind)
            left += [gives(kind, name) for name in dir(kind) if name[0] != "_"]
    return found


def gives(kind: type, name: str) -> Any:
    """The type of an attribute, or of what a method returns."""
    member = inspect.getattr_static(kind, name, None)
    member = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
    if inspect.isfunction(member):
        return hints(member, member.__globals__).get("return")
    annotated = [each for each in kind.__mro__ if name in inspect.get_annotations(each)]
    return hints(annotated[0], vars(sys.modules[annotated[0].__module__]))[name] if annotated else None


def hints(annotated: Any, scope: dict[str, Any]) -> dict[str, Any]:
    """Its annotations. Names in the scope go first: what is imported for type checkers only is not in it."""
    return get_type_hints(annotated, globalns=NAMES | scope)


DOMAINS = tuple(
    f"treering.{each}"
    for each in ("aio", "store", "threads", "runs", "limits", "memory", "state", "schedules", "workspaces",
                 "effects", "approvals", "maintenance", "replays")
)  # fmt: skip
for each in pkgutil.walk_packages(treering.__path__, "treering."):
    if each.name.startswith(DOMAINS) and not each.name.startswith("treering.replays"):
        import_module(each.name)
NAMES: dict[str, Any] = vars(collections.abc) | {
    name: value
    for module in list(sys.modules.values())
    if module.__name__.startswith(
        ("treering.", "datetime", "decimal", "pathlib", "re", "threading", "typing")
    )
    for name, value in vars(module).items()
}
"""What annotations name; modules import much of it for type checkers only."""


def test_get_gives_none_where_load_raises(store):
    unknown = [
        (store.thread("nobody"), ()),
        (store.runs, ("nobody",)),
        (store.memory, ("nothing",)),
        (store.state, ("nothing",)),
        (store.schedules, ("00000000",)),
        (store.approvals, ("00000000",)),
        (store.effects, ("nothing",)),
    ]
    for holder, arguments in unknown:
        assert holder.get(*arguments) is None, holder
        with pytest.raises(treering.errors.NotFound):
            holder.load(*arguments)
