"""The gateway isolates projects, whatever a client's namespace is, and enforces the scope of keys."""

from __future__ import annotations

import re
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.gateway.requests import post

from treering.core.batch import Draft, Event
from treering.core.content import Content
from treering.core.query import Erasure, EventQuery, ListQuery, SearchQuery, SqlQuery, SumQuery
from treering.core.records import Lease, Slice
from treering.engines.remote import protocol
from treering.engines.remote.engine import open_remote
from treering.engines.remote.protocol import METHODS
from treering.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    Unauthorized,
    Unsupported,
)
from treering.server.auth import KEYS_SPACE, SCOPES
from treering.server.gateway import namespaces_of, space_of
from treering.testing import batches
from treering.testing.portrait import portrait

CANARY = "canary-of-the-neighbour"
LEASE = Lease(space="b", name="job", holder="b", token=1, expires_at_us=2**52)


def _archive(on, space):
    with suppress(Unsupported):  # by stores in memory, which is what the server has here
        on.archive_before(space, 0)


CALLS = {
    "hello": lambda on, _: on._handshake(),
    "commit": lambda on, space: on.commit(batches.set_ref(space, "mine")),
    "query": lambda on, space: on.query(space, SqlQuery(sql="SELECT run, agent FROM runs")),
    "archive_info": lambda on, space: on.archive_info(space),
    "archive_before": _archive,
    "stage": lambda on, space: on.stage(space, [batches.noise(5000, seed=1)]),
    "claim": lambda on, space: on.claim(space, "job", holder="a", seconds=60),
    "heartbeat": lambda on, space: on.heartbeat(msgspec.structs.replace(LEASE, space=space), seconds=60),
    "release": lambda on, space: on.release(msgspec.structs.replace(LEASE, space=space)),
    "missing": lambda on, space: on.missing(space, [batches.noise(5000, seed=7).name]),
    "get": lambda on, space: on.get(space, [f"s:{CANARY}:0.0"]),
    "lineage": lambda on, space: on.lineage(space, CANARY),
    "read_list": lambda on, space: on.read_list(space, CANARY, 0, 10),
    "refs": lambda on, space: on.refs(space, [CANARY]),
    "scan_refs": lambda on, space: on.scan_refs(space, ""),
    "list_refs": lambda on, space: on.list_refs(space, ListQuery(list="threads")),
    "scan": lambda on, space: on.scan(space, EventQuery()),
    "wait": lambda on, space: on.wait(space, 0, seconds=0),
    "sums": lambda on, space: on.sums(space, SumQuery(grain="day", by=("agent",))),
    "search": lambda on, space: on.search(space, SearchQuery(collection="notes", text=CANARY)),
    "scan_scopes": lambda on, space: on.scan_scopes(space, ""),
    "spaces": lambda on, _: on.spaces(),
    "stats": lambda on, space: on.stats(space),
    "erase": lambda on, space: on.erase(space, Erasure(scopes=(f"/{CANARY}/x",), refs=(CANARY,))),
    "sweep": lambda on, space: on.sweep(space, grace_seconds=0),
    "check": lambda on, space: list(on.check(space)),
    "reindex": lambda on, space: on.reindex(space),
    "commit_digests": lambda on, space: on.commit_digests(space),
    "export": lambda on, space: list(on.export(space)),
    "load": lambda on, space: on.load(space, Slice(position="x", last_seq=9, committed_at_us=9)),
}


class TestTenants:
    def test_every_method_is_covered_here(self):
        assert CALLS.keys() == METHODS.keys()

    @pytest.mark.parametrize("method", CALLS)
    def test_no_method_reaches_another_project(self, store, opened, keys, method):
        """Any namespace is as empty as another, and the other project is unaffected."""
        theirs = ("b", space_of("b", "x"))
        for space in theirs:
            _plant(store.engine, space)
        mine = opened(keys("a"))
        before = [_state(store.engine, space) for space in (*theirs, KEYS_SPACE)]
        usual = _result_text(method, mine, "unused")
        for namespace in ("default", "b", "side.1.b.x", "side.1.a.b", KEYS_SPACE, "x"):
            assert _result_text(method, mine, namespace) == usual
            assert [_state(store.engine, space) for space in (*theirs, KEYS_SPACE)] == before

    def test_a_forged_space_in_a_record_is_ignored(self, store, url, keys):
        """As a malicious client would send it."""
        token = keys("a")
        held = store.engine.claim("b", "job", holder="b", seconds=60)
        forged = msgspec.msgpack.encode(protocol.CommitRequest((batches.set_ref("b", "forged"),)))
        status, answer = post(url, "commit", protocol.frame(protocol.MESSAGE, forged), token=token)
        assert status == 200, answer
        assert store.engine.refs("a", ["forged"])
        assert not store.engine.refs("b", ["forged"])
        release = msgspec.msgpack.encode(protocol.LeaseRequest(lease=held))
        assert post(url, "release", protocol.frame(protocol.MESSAGE, release), token=token)[0] == 200
        assert store.engine.claim("b", "job", holder="a", seconds=1) is None

    def test_namespaces_are_private_to_their_project(self, opened, keys):
        mine, theirs = opened(keys("a")), opened(keys("b"))
        for each in (mine, theirs):
            for namespace in ("default", "x", "side.1.b.x"):
                each.commit(batches.set_ref(namespace, "r"))
        theirs.commit(batches.set_ref("y", "r"))
        assert mine.spaces() == ["default", "side.1.b.x", "x"]
        assert theirs.spaces() == ["default", "side.1.b.x", "x", "y"]
        assert (mine.project, theirs.project) == ("a", "b")

    @given(st.lists(st.tuples(*[st.from_regex(r"[a-c0-9.-]{1,6}", fullmatch=True)] * 2), min_size=2))
    def test_different_pairs_have_different_spaces(self, pairs):
        found = {}
        for project, namespace in pairs:
            try:
                space = space_of(project, namespace)
            except (InvalidInput, Forbidden):
                continue
            assert found.setdefault(space, (project, namespace)) == (project, namespace)
            assert namespaces_of(project, [space]) == [namespace]

    def test_the_name_of_the_project_is_not_a_namespace(self, opened, keys):
        mine = opened(keys("acme"))
        with pytest.raises(InvalidInput, match="omit the namespace"):
            mine.refs("acme", ["r"])

    def test_a_project_named_like_a_side_space_cannot_use_the_gateway(self, opened, keys):
        mine = opened(keys("a"))
        mine.commit(batches.set_ref("x", "r"))
        with pytest.raises(InvalidInput, match="reserved"):
            keys(space_of("a", "x"))
        with pytest.raises(Forbidden, match="rename the project"):
            space_of(space_of("a", "x"), "default")


class TestKeys:
    def test_a_key_is_required(self, url, keys):
        keys("a")
        with pytest.raises(Unauthorized, match="key"):
            open_remote(url)
        with pytest.raises(Unauthorized):
            open_remote(url, api_key="tr_wrong_key")

    @pytest.mark.parametrize("scope", SCOPES)
    def test_a_scope_allows_its_methods_and_no_others(self, store, opened, keys, scope):
        mine = opened(keys("a", scope))
        assert mine.scope == scope
        _plant(store.engine, "a")
        for name, call in CALLS.items():
            allowed = SCOPES.index(METHODS[name].scope) <= SCOPES.index(scope)
            try:
                call(mine, "default")
            except Forbidden:
                assert not allowed, name
            else:
                assert allowed, name

    def test_a_key_with_a_line_break_is_not_sent(self, url):
        with pytest.raises(InvalidInput, match="line break"):
            open_remote(url, api_key="tr_x\r\nevil: yes")

    @pytest.mark.parametrize(
        "place",
        [
            "https://:secret@host",
            "https://host?api_key=secret",
            "https://host#secret",
            "https://",
            "https://host:port",
        ],
    )
    def test_a_url_contains_no_secret(self, place):
        with pytest.raises(InvalidInput) as caught:
            open_remote(place)
        assert "secret" not in str(caught.value)


def _result_text(method, on, namespace):
    """Return the result of a call as text, without times, ids and the name of the namespace."""
    try:
        result = repr(CALLS[method](on, namespace))
    except NotFound:
        return NotFound
    assert CANARY not in result
    result = re.sub(r"\b[0-9a-z]{26}\b|\d{12,}", "...", result)
    return result.replace(f"space='{namespace}'", "space=...")


def _state(on, space):
    lease = on.claim(space, "job", holder="someone else", seconds=0)
    return portrait(on, space), on.wait(space, 0, seconds=0), on.stats(space).objects, lease is None


def _plant(on, space):
    draft = Draft(space, id=CANARY)
    body = draft.put(Content("text", CANARY.encode()), scope=f"/{CANARY}/x")
    draft.put(batches.noise(5000, seed=7), scope="s")
    draft.append(CANARY, body, scope=f"/{CANARY}/x", at=0)
    draft.set_ref(CANARY, CANARY.encode(), scope=f"/{CANARY}/x", links=(body,))
    draft.event(Event(id=CANARY, kind="note", ts_us=1, scope=f"/{CANARY}/x", agent=CANARY, body=body))
    batch = draft.batch()
    on.commit(batch)
    on.commit(batches.index_text(space, CANARY, CANARY))
    on.claim(space, "job", holder="b", seconds=60)
