"""Namespaces isolate tenants, whatever their names and those of their threads."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import treering
from tests.compat.savers.savers_under_test import PlainStore, say
from treering.compat.savers import FileSaver, KeyValueStoreSaver, MemorySaver
from treering.errors import NotFound

NASTY = [
    "a",
    "b",
    "a/b",
    "a//b",
    "/",
    "//",
    "..",
    ".",
    "@",
    "@a",
    "~",
    "%",
    "%2F",
    "a%2Fb",
    "head",
    "data",
    "A",
]
names = st.sampled_from(NASTY) | st.text("ab/@%.~-_", min_size=1, max_size=6)
tenants = st.just("") | names
pairs = st.lists(st.tuples(tenants, names), min_size=2, max_size=8, unique=True)


def savers(kind, folder):
    if kind == "memory":
        store = treering.open("memory:")
        return lambda namespace: MemorySaver(store, namespace=namespace)
    if kind == "key-value":
        kept = PlainStore()
        return lambda namespace: KeyValueStoreSaver(kept, namespace=namespace)
    return lambda namespace: FileSaver(folder, namespace=namespace)


def check(of, owned):
    ids = {}
    for namespace, thread_id in owned:
        saved = of(namespace).save(thread_id=thread_id, messages=[say(repr((namespace, thread_id)))])
        ids[namespace, thread_id] = saved.id
    for namespace in {namespace for namespace, _ in owned}:
        mine = {thread_id for owner, thread_id in owned if owner == namespace}
        listed = {each.thread_id: each for each in of(namespace).list()}
        assert set(listed) == mine
        assert {each.namespace for each in listed.values()} == {of(namespace).namespace}
        for owner, thread_id in owned:
            if thread_id in mine:
                loaded = of(namespace).load(thread_id)
                assert loaded.messages == [say(repr((namespace, thread_id)))]
            else:
                assert of(namespace).load(thread_id) is None
                assert not of(namespace).delete(thread_id)
            if owner != namespace:
                for mine_or_not in (thread_id, *mine):
                    with pytest.raises(NotFound):
                        of(namespace).load(mine_or_not, ids[owner, thread_id])
                    with pytest.raises(NotFound):
                        of(namespace).fork(mine_or_not, "fork", checkpoint_id=ids[owner, thread_id])
    gone = owned[0]
    assert of(gone[0]).delete(gone[1])
    for namespace, thread_id in owned[1:]:
        assert of(namespace).load(thread_id).messages == [say(repr((namespace, thread_id)))]


@pytest.mark.parametrize("kind", ["memory", "key-value"])
@given(owned=pairs)
@settings(max_examples=60)
def test_namespaces_are_isolated(kind, owned):
    check(savers(kind, None), owned)


@given(owned=pairs)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_namespaces_of_files_are_isolated(owned, tmp_path_factory):
    check(savers("files", tmp_path_factory.mktemp("kept")), owned)
