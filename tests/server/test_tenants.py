"""Nobody reads across projects and namespaces: threads, savers and LangGraph's, in one store and over HTTP.

Over HTTP there is a real `treering serve`, and a key of each of two projects. Both projects have the same
namespaces and threads of the same names, and each tries what the other's ids open.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import empty_checkpoint

import treering
from tests.compat.savers.savers_under_test import say
from tests.compat.savers.test_isolation import check, names, tenants
from tests.server.test_serving import Server
from treering.adapters.langgraph import TreeringSaver
from treering.compat.savers import MemorySaver
from treering.core.clock import SystemClock
from treering.errors import NotFound
from treering.server.auth import Keys

PROJECTS = ("acme", "globex")


class Tenant(NamedTuple):
    project: str
    namespace: str


everyone = st.builds(Tenant, st.sampled_from(PROJECTS), tenants)
owners = st.lists(st.tuples(everyone, names), min_size=2, max_size=6, unique=True)


@pytest.fixture(scope="module", params=["memory", "http"])
def fresh(request, tmp_path_factory):
    """Stores of both projects that are empty, at each call; they have the same namespace inside."""
    number = count()
    if request.param == "memory":
        with treering.open("memory:") as whole:
            yield lambda: {each: whole.in_namespace(f"{each}{next(number)}") for each in PROJECTS}
        return
    folder = tmp_path_factory.mktemp("served")
    with treering.open(folder, durability="fast") as local:
        keys = Keys(local.engine, clock=SystemClock())
        tokens = [keys.create(project=project, scope="admin").token for project in PROJECTS]
    with (
        Server(folder) as server,
        treering.open(server.url, api_key=tokens[0]) as one,
        treering.open(server.url, api_key=tokens[1]) as other,
    ):

        def opened():
            inside = f"room-{next(number)}"
            return {
                project: store.in_namespace(inside)
                for project, store in zip(PROJECTS, (one, other), strict=True)
            }

        yield opened


@given(owned=owners)
@settings(max_examples=12)
def test_savers_do_not_read_across(fresh, owned):
    stores = fresh()
    check(lambda tenant: MemorySaver(stores[tenant.project], namespace=tenant.namespace), owned)


@given(owned=owners)
@settings(max_examples=12)
def test_threads_do_not_read_across(fresh, owned):
    stores = fresh()
    saved = {
        (tenant, thread_id): stores[tenant.project]
        .thread(thread_id, tenant.namespace)
        .append(say(repr((tenant, thread_id))), state={"of": list(tenant)})
        for tenant, thread_id in owned
    }
    for tenant in {tenant for tenant, _ in owned}:
        store = stores[tenant.project]
        mine = {thread_id for owner, thread_id in owned if owner == tenant}
        assert {each.id for each in store.threads(namespace=tenant.namespace)} == mine
        for owner, theirs in owned:
            thread = store.thread(theirs, tenant.namespace)
            found = thread.get()
            assert (found is None) == (theirs not in mine)
            if found is not None:
                assert found.messages == [say(repr((tenant, theirs)))]
                assert found.state == {"of": list(tenant)}
                assert [each.id for each in thread.history()] == [saved[tenant, theirs].id]
            if owner != tenant:
                _reaches_nothing(thread, saved[owner, theirs].id)
    for project, store in stores.items():
        everywhere = {(each.namespace, each.id) for each in store.threads(namespace=None)}
        assert everywhere == {
            (tenant.namespace, thread_id) for tenant, thread_id in owned if tenant.project == project
        }
    (tenant, thread_id), *others = owned
    stores[tenant.project].thread(thread_id, tenant.namespace).delete()
    for owner, theirs in others:
        thread = stores[owner.project].thread(theirs, owner.namespace)
        assert thread.load().messages == [say(repr((owner, theirs)))]


def _reaches_nothing(thread, foreign_id):
    for attempt in (
        lambda: thread.at(foreign_id),
        lambda: thread.rewind(foreign_id),
        lambda: thread.fork("a fork of what is not mine", at=foreign_id),
        lambda: thread.diff(foreign_id, foreign_id),
        lambda: list(thread.history(after=foreign_id)),
        lambda: list(thread.history(after=foreign_id, everything=True)),
    ):
        with pytest.raises(NotFound):
            attempt()


def _config(thread_id, checkpoint_id=None):
    chosen = {"thread_id": thread_id, "checkpoint_ns": ""}
    return {"configurable": chosen | ({} if checkpoint_id is None else {"checkpoint_id": checkpoint_id})}


def _put(saver, tenant, thread_id):
    """A checkpoint with a message list, a value and a write, which all say whose they are."""
    result = repr((tenant, thread_id))
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"text": result, "list": [result * 40] * 40}
    checkpoint["channel_versions"] = {"text": 1, "list": 1}
    at = saver.put(_config(thread_id), checkpoint, {"step": 0, "run_id": "run"}, {"text": 1, "list": 1})
    saver.put_writes(at, [("text", result + " next")], "task")
    return checkpoint["id"]


@given(owned=owners)
@settings(max_examples=8)
def test_graphs_do_not_read_across(fresh, owned):
    stores = fresh()
    savers = {
        tenant: TreeringSaver(stores[tenant.project], namespace=tenant.namespace)
        for tenant in {tenant for tenant, _ in owned}
    }
    ids = {(tenant, thread_id): _put(savers[tenant], tenant, thread_id) for tenant, thread_id in owned}
    for tenant, saver in savers.items():
        mine = {thread_id for owner, thread_id in owned if owner == tenant}
        listed = {each.config["configurable"]["thread_id"]: each for each in saver.list(None)}
        assert set(listed) == mine
        for thread_id, found in listed.items():
            assert _says(found, tenant, thread_id)
            assert _says(saver.get_tuple(_config(thread_id)), tenant, thread_id)
        for (owner, theirs), foreign_id in ids.items():
            if owner != tenant:
                for thread_id in (theirs, *mine):
                    _opens_nothing(saver, _config(thread_id, foreign_id))
            if theirs not in mine:
                assert saver.get_tuple(_config(theirs)) is None
                assert list(saver.list(_config(theirs))) == []
                saver.delete_thread(theirs)
                saver.copy_thread(theirs, "a copy of what is not mine")
                assert saver.get_tuple(_config("a copy of what is not mine")) is None
    gone, *others = savers
    savers[gone].delete_for_runs(["run"])
    assert list(savers[gone].list(None)) == []
    for tenant in others:
        for thread_id in {thread_id for owner, thread_id in owned if owner == tenant}:
            assert _says(savers[tenant].get_tuple(_config(thread_id)), tenant, thread_id)


def _says(found, tenant, thread_id):
    result = repr((tenant, thread_id))
    values = found.checkpoint["channel_values"]
    return (
        values == {"text": result, "list": [result * 40] * 40}
        and found.pending_writes == [("task", "text", result + " next")]
        and found.config["configurable"]["thread_id"] == thread_id
    )


def _opens_nothing(saver, config):
    assert saver.get_tuple(config) is None
    assert list(saver.list(config)) == []
    history = saver.get_delta_channel_history(config=config, channels=["text", "list"])
    assert history == {"text": {"writes": []}, "list": {"writes": []}}
