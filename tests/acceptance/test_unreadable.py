"""An entry that cannot be read is named, and the rest of its list is shown: in Python, REST and commands."""

from __future__ import annotations

import warnings

import pytest
from starlette.testclient import TestClient

import treering
from treering.cli.main import main
from treering.core.batch import Draft
from treering.core.query import UnreadableWarning, each_ref
from treering.errors import Corrupt
from treering.server.app import create_app
from treering.server.auth import Keys

JUNK = (b"\xff\x00 junk", b"{}", b"[1]", b"null", b'{"per": 3}', b'{"address": {}, "digest": null}')


def fill(store: treering.Store) -> None:
    for name in ("a", "b", "c"):
        store.thread(name).append({"role": "user", "content": name})
        store.state.set(name, {"is": name})
        store.memory.save(name, f"about {name}")
        store.budgets.set(name, per="store", tokens=10)
        store.alerts.set_rule(name, "failed")
        store.alerts.set_webhook(name, f"https://example.com/{name}")
        with store.run("x", id=name):
            pass
        store.schedules.once("2099-12-31T23:59:00+01:00", prompt=f"do {name}")
    store.flush()


LISTS = {
    "thread": ("thread/", lambda store: [each.id for each in store.threads()], "/threads"),
    "state": ("state/", lambda store: [each.key for each in store.state.list()], "/state"),
    "document": ("memory/", lambda store: [each.id for each in store.memory.query()], "/memory"),
    "budget": ("budget/", lambda store: [each.name for each in store.budgets.list()], "/budgets"),
    "rule": ("alerts/rule/", lambda store: [each.name for each in store.alerts.rules()], "/alerts/rules"),
    "webhook": (
        "alerts/webhook/",
        lambda store: [each.name for each in store.alerts.webhooks()],
        "/alerts/webhooks",
    ),
    "run": ("run/", lambda store: [each.id for each in store.runs.each()], "/runs"),
    "task": ("schedule/", lambda store: [each.prompt for each in store.schedules.list_tasks()], "/schedules"),
}
"""The prefix of the refs, the list in Python, and its route."""


def spoil(store: treering.Store, prefix: str, value: bytes) -> str:
    """Overwrite the second ref of a domain, as a fault or a program of someone else may; return its name."""
    ref = list(each_ref(store.engine, store.space, prefix))[1]
    draft = Draft(store.space)
    draft.set_ref(ref.name, value, scope="s", listing=ref.listing)
    store.engine.commit(draft.batch())
    return ref.name


@pytest.mark.parametrize("domain", LISTS)
@pytest.mark.parametrize("junk", JUNK)
def test_a_list_shows_the_rest_and_names_the_one_that_cannot_be_read(domain, junk):
    prefix, names, path = LISTS[domain]
    if domain == "state" and junk.startswith((b"{", b"[", b"n")):
        pytest.skip("any JSON is a state")
    with treering.open("memory:") as store:
        fill(store)
        whole = names(store)
        assert len(whole) == 3
        ref = spoil(store, prefix, junk)
        with pytest.warns(UnreadableWarning, match=ref.split("/")[-1]):
            left = names(store)
        assert len(left) == 2
        assert set(left) < set(whole)
        with (
            TestClient(create_app(store), base_url="http://127.0.0.1:8787") as client,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error")
            answer = client.get(path)
            assert answer.status_code == 200, answer.text
            (entries,) = (
                each
                for name, each in answer.json().items()
                if isinstance(each, list) and name != "unreadable"
            )
            assert len(entries) == 2
            assert [each["name"] for each in answer.json()["unreadable"]] == [ref]


def test_the_one_that_cannot_be_read_is_an_error_to_whoever_asks_for_it():
    with treering.open("memory:") as store:
        fill(store)
        spoil(store, "state/", b"\xff")
        with pytest.raises(Corrupt):
            store.state.get("b")
        assert store.state.get("a") == {"is": "a"}


def test_a_guard_applies_the_other_budgets_and_what_it_knew_of_the_broken_one():
    with treering.open("memory:") as store:
        store.budgets.set("calls", per="store", tool_calls=1)
        store.budgets.set("other", per="store", tokens=100)
        with store.run("x") as run:
            with run.tool("one"):
                pass
            spoil(store, "budget/", b"junk")  # other
            store.budgets.set("calls", per="store", tool_calls=1)
            with pytest.raises(treering.errors.BudgetExceeded), run.tool("two"):
                pass


def test_keys_are_listed_without_one_that_cannot_be_read():
    with treering.open("memory:") as store:
        keys = Keys(store.engine, clock=store.clock)
        made = [keys.create(scope="read", name=name).key for name in ("one", "two", "three")]
        ref = sorted(f"key/{each.id}" for each in made)[1]
        draft = Draft(next(space for space in store.engine.spaces() if "keys" in space))
        draft.set_ref(ref, b"junk", scope="s")
        store.engine.commit(draft.batch())
        with pytest.warns(UnreadableWarning, match=ref):
            assert len(keys.list()) == 2


@pytest.mark.parametrize(
    "command", [("threads",), ("state", "list"), ("memory", "list"), ("budgets", "list"), ("runs",)]
)
def test_commands_show_the_rest_and_warn(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREERING_URL", raising=False)
    prefix = {"threads": "thread/", "runs": "run/"}.get(command[0], f"{command[0].removesuffix('s')}/")
    with treering.open() as store:
        fill(store)
        ref = spoil(store, prefix, b"\xff")
    for more in ((), ("--json",)):
        with pytest.raises(SystemExit) as ended:
            main([*command, *more])
        assert not ended.value.code
        assert f"warning: {ref} is left out" in capsys.readouterr().err


def test_a_remote_store_shows_the_rest_as_well():
    from tests.server.running import running

    with treering.open("memory:") as store, running(store) as url:
        fill(store)
        spoil(store, "thread/", b"junk")
        with treering.open(url) as remote, pytest.warns(UnreadableWarning):
            assert len(list(remote.threads())) == 2
