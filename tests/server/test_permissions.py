"""What a key may not do by REST, it may not do with ``treering.open("https://...")`` either."""

from __future__ import annotations

from importlib import import_module

import httpx
import pytest

import treering
from tests.server.running import running
from treering.core.batch import Batch, Delete, Draft, Event, RefChange, Set
from treering.core.clock import SystemClock
from treering.core.ids import MAINTENANCE_SCOPE, new_id
from treering.core.query import each_ref
from treering.effects import Attempt, Intent
from treering.errors import Forbidden
from treering.server.app import ROUTES
from treering.server.auth import Access, Keys
from treering.server.permissions import scan_refs

CHANGES = {
    ("PUT", "/budgets/{name}"): {"per": "run", "tokens": 5},
    ("DELETE", "/budgets/{name}"): None,
    ("PUT", "/alerts/rules/{name}"): {"what": "failed"},
    ("DELETE", "/alerts/rules/{name}"): None,
    ("PUT", "/alerts/webhooks/{name}"): {"url": "https://example.com/x"},
    ("DELETE", "/alerts/webhooks/{name}"): None,
    ("PUT", "/approval-rules/{name}"): {"tool": "pay"},
    ("DELETE", "/approval-rules/{name}"): None,
}
"""Every change that needs an admin key and is a commit, with a body of the request."""
ERASURES = {
    ("POST", "/store/verify"),
    ("POST", "/store/gc"),
    ("POST", "/store/forget"),
    ("POST", "/store/reindex"),
    ("POST", "/store/move"),
    ("POST", "/store/archive"),
    ("POST", "/store/seals"),
    ("POST", "/store/seals/verify"),
    ("POST", "/keys"),
    ("DELETE", "/keys/{id}"),
    ("POST", "/memory/{id}/forget"),
    ("DELETE", "/threads/{id}"),
    ("POST", "/runs/{id}/reruns"),
    ("DELETE", "/runs/{id}/reruns/{job}"),
}
"""What needs an admin key and is more than a commit: a gateway method, another namespace, a process."""


@pytest.fixture
def server():
    with treering.open("memory:") as store, running(store) as url:
        keys = Keys(store.engine, clock=SystemClock())
        tokens = {scope: keys.create(scope=scope).token for scope in ("read", "write", "admin")}
        yield store, url, tokens


@pytest.fixture
def opened(server):
    _, url, tokens = server
    with (
        treering.open(url, api_key=tokens["write"]) as writer,
        treering.open(url, api_key=tokens["admin"]) as admin,
    ):
        yield writer, admin


def test_a_write_key_cannot_change_limits_of_a_remote_store(opened):
    writer, admin = opened
    admin.budgets.set("daily", per="store", every="day", tokens=5)
    admin.alerts.set_rule("failed", "failed")
    admin.alerts.set_webhook("ops", "https://example.com/ops")
    attempts = [
        lambda: writer.budgets.remove("daily"),
        lambda: writer.budgets.set("daily", per="store", tokens=10**9),
        lambda: writer.alerts.set_rule("failed", "cost"),
        lambda: writer.alerts.remove_rule("failed"),
        lambda: writer.alerts.set_webhook("ops", "http://127.0.0.1:1/"),
        lambda: writer.alerts.remove_webhook("ops"),
        writer.alerts.webhooks,
        lambda: writer.alerts.deliver("ops"),
        lambda: writer.engine.claim(writer.space, "alerts/webhook/ops", holder="me", seconds=60),
    ]
    for attempt in attempts:
        with pytest.raises(Forbidden, match="requires a key with scope 'admin'"):
            attempt()
    assert [each.name for each in admin.budgets.list()] == ["daily"]
    assert admin.budgets.list()[0].tokens == 5
    assert [each.url for each in admin.alerts.webhooks()] == ["https://example.com/ops"]


def test_a_key_decides_about_an_effect_as_itself_whatever_it_says(server):
    store, url, tokens = server
    (intent,) = [Intent(tool="pay", arguments={}, thread_id="t", run_id="r")]
    store.effects.plan(intent)
    begun = store.effects.begin(intent.id)
    assert isinstance(begun, Attempt)
    begun.leave()
    done = httpx.post(
        f"{url}/effects/{intent.id}/decision",
        json={"decision": "abandon", "by": "the boss"},
        headers={"authorization": f"Bearer {tokens['write']}"},
    )
    assert done.json()["effect"]["decided_by"].startswith("key "), (
        "the key has no name, so it is named by its id"
    )


def test_what_rest_reserves_for_admins_the_gateway_reserves_too(server, opened):
    httpx = pytest.importorskip("httpx")
    store, url, tokens = server
    writer, _ = opened
    endpoints = [
        each
        for name in ROUTES
        for each in getattr(import_module(f"treering.server.routes.{name}"), "ENDPOINTS", ())
    ]
    guarded = {
        (each.method, each.path)
        for each in endpoints
        if each.scope == "admin" and each.method != "GET" and each.tag != "gateway"
    }
    assert guarded == CHANGES.keys() | ERASURES  # a new endpoint belongs to one of them
    for (method, path), body in CHANGES.items():
        where = url + path.format(name="it")
        headers = {"authorization": f"Bearer {tokens['write']}"}
        assert httpx.request(method, where, json=body, headers=headers).status_code == 403
        before = {ref.name: ref.value for ref in each_ref(store.engine, store.space, "")}
        headers = {"authorization": f"Bearer {tokens['admin']}"}
        assert httpx.request(method, where, json=body, headers=headers).status_code == 200
        after = {ref.name: ref.value for ref in each_ref(store.engine, store.space, "")}
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert changed
        for name in changed:
            for change in (Set(value=b"{}"), Delete()):
                ref = RefChange(name=name, scope="s", change=change)
                with pytest.raises(Forbidden):
                    writer.engine.commit(Batch(id=new_id(), space=writer.space, refs=(ref,)))


def test_a_write_key_cannot_write_the_account_of_what_was_erased(opened):
    writer, admin = opened
    for store in opened:
        draft = Draft(store.space)
        draft.event(Event(id=new_id(), kind="forget", ts_us=1, scope=MAINTENANCE_SCOPE))
        if store is admin:
            store.engine.commit(draft.batch())
            continue
        with pytest.raises(Forbidden, match="write events"):
            store.engine.commit(draft.batch())
    with pytest.raises(Forbidden, match="file/x"):
        writer.engine.commit(
            Batch(
                id=new_id(),
                space=writer.space,
                refs=(RefChange(name="file/x", scope="s", change=Set(value=b"{}")),),
            )
        )


def test_a_refused_batch_leaves_the_others_of_its_request_alone(opened):
    writer, _ = opened
    good, bad = Draft(writer.space), Draft(writer.space)
    good.set_ref("mine", b"1", scope="s")
    bad.set_ref("budget/mine", b"{}", scope="s")
    results = [writer.engine.submit(each.batch()) for each in (bad, good)]
    with pytest.raises(Forbidden):
        results[0].result(30)
    assert results[1].result(30).versions == {"mine": 1}


def test_pages_of_refs_omit_what_the_key_may_not_read():
    with treering.open("memory:") as store:
        for name in ("a", "alerts/webhook/1", "alerts/webhook/2", "alerts/x", "z"):
            draft = Draft(store.space)
            draft.set_ref(name, b"", scope="s")
            store.engine.commit(draft.batch())
        for scope, size, expected in (
            ("read", 2, ["a", "alerts/x", "z"]),
            ("write", 1, ["a", "alerts/x", "z"]),
            ("admin", 2, ["a", "alerts/webhook/1", "alerts/webhook/2", "alerts/x", "z"]),
        ):
            access = Access(project=store.space, scope=scope, name="test")
            found, after = [], None
            while page := scan_refs(access, store.engine, store.space, "", after=after, limit=size):
                found += [ref.name for ref in page]
                after = found[-1]
            assert found == expected
        access = Access(project=store.space, scope="write", name="test")
        with pytest.raises(Forbidden):
            scan_refs(access, store.engine, store.space, "alerts/webhook/1", after=None, limit=5)


def test_a_budget_still_stops_an_agent_with_a_write_key_and_raises_an_alert(opened):
    writer, admin = opened
    admin.budgets.set("calls", per="store", tool_calls=0)
    with pytest.raises(treering.errors.BudgetExceeded), writer.run(agent="a") as run, run.tool("search"):
        pass
    assert [each.rule for each in admin.alerts.page().alerts] == ["budget/calls"]
