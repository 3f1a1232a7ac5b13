"""``--json`` and REST have one shape for each thing: the same keys, at every depth."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import treering
from treering.effects import Intent
from treering.server.app import ROUTES, create_app
from treering.server.settings import Settings

SHAPES = {
    "threads": "/threads",
    "log t": "/threads/{id}/lineage",
    "show t": "/threads/{id}/checkpoints/{checkpoint}",
    "diff CHECKPOINT t": "/threads/{id}/diff?a=CHECKPOINT&b=~0",
    "compact t": "/threads/{id}/compactions",
    "transcript t": "/threads/{id}/transcript",
    "runs": "/runs",
    "show RUN": "/runs/{id}",
    "tree RUN": "/runs/{id}/tree",
    "timeline RUN": "/runs/{id}/timeline",
    "timeline --thread t": "/threads/{id}/timeline",
    "replay RUN": "/runs/{id}/replay?contents=true",
    "step RUN": "/runs/{id}/steps",
    "step RUN 1": "/runs/{id}/steps/{number}",
    "compare RUN OTHER": "/runs/{id}/compare/{other}",
    "search hello": "/search/everything?q=hello",
    "search hello --run RUN": "/search?q=hello&run=RUN",
    "cost": "/cost",
    "cost --by day": "/cost?by=day",
    "performance": "/performance",
    "snapshots": "/snapshots",
    "ls SNAPSHOT": "/snapshots/{id}/ls",
    "secrets SNAPSHOT": "/snapshots/{id}/secrets",
    "diff SNAPSHOT LATER": "/snapshots/diff?a=SNAPSHOT&b=LATER",
    "memory list": "/memory",
    "memory get note": "/memory/{id}",
    "memory search words": "/memory/search?q=words",
    "memory history note": "/memory/{id}/history",
    "memory diff note 1": "/memory/{id}/diff?a=1",
    "state list": "/state",
    "state get key": "/state/{key}",
    "state history key": "/state/{key}/history",
    "schedules list": "/schedules",
    "schedules show TASK": "/schedules/{id}",
    "schedules occurrences": "/schedules/{id}/occurrences",
    "approvals list": "/approvals",
    "approvals show APPROVAL": "/approvals/{id}",
    "approvals rules": "/approval-rules",
    "effects list": "/effects",
    "effects show EFFECT": "/effects/{id}",
    "budgets list": "/budgets",
    "alerts list": "/alerts",
    "alerts rules": "/alerts/rules",
    "stats": "/store/stats",
    "growth": "/store/growth",
    "keys list": "/keys",
    "verify": "POST /store/verify",
    "gc --dry-run": "POST /store/gc",
}
PLACES = {
    "/threads/{id}": "t",
    "/runs/{id}": "RUN",
    "/snapshots/{id}": "SNAPSHOT",
    "/memory/{id}": "note",
    "/state/{key}": "key",
    "/schedules/{id}": "TASK",
    "/approvals/{id}": "APPROVAL",
    "/effects/{id}": "EFFECT",
    "/checkpoints/{checkpoint}": "~0",
    "/steps/{number}": "1",
    "/compare/{other}": "OTHER",
}
EVENT = "[].body [].content [].seq [].ts_us [].meta.cost [].meta.currency [].meta.cost_eur"
ONLY = {
    "REST has the shape of the document that asks for it, and contents at an address": {
        "timeline RUN": EVENT,
        "timeline --thread t": EVENT,
    },
    "what only a caller with a key may or may not do": {
        "approvals list": "[].may_answer",
        "approvals show APPROVAL": ".may_answer .files",
    },
    "what REST gives at an address of its own": {
        "effects show EFFECT": ".since",
        "alerts rules": ".webhooks",
    },
    "what only a page of a list or a browser has, and the reply that REST gives at /partial": {
        "show t": ".readable .partial .compactions",
        "alerts rules": ".unreadable",
        "runs": "[].archived",
        "show RUN": ".archived",
    },
}
"""What one of the two has and the other has not, by reason."""
UNPAIRED = {
    "/threads/{id}": "the first item of a list",
    "/threads/{id}/history": "the checkpoints of `log` without the tree",
    "/threads/{id}/view": "what a model is given: an API for programs",
    "/threads/{id}/partial": "a part of `show`",
    "/runs/{id}/spans": "for the dashboard",
    "/runs/{id}/spans/{span}": "for the dashboard; `show SPAN` prints the event",
    "/runs/{id}/cost": "in the shape of the document that asks for it",
    "/runs/{id}/reruns": "for the dashboard: also who may start one",
    "/runs/{id}/steps/count": "for the dashboard",
    "/runs/{id}/steps/find": "for the dashboard",
    "/compare/agents": "for the dashboard",
    "/memory/namespaces": "for the dashboard",
    "/snapshots/{id}/cat": "bytes",
    "/snapshots/{id}/check": "for the dashboard",
    "/effects/{id}/changes": "a part of `effects show`",
    "/approvals/{id}/changes": "a part of `approvals show`",
    "/alerts/webhooks": "a part of `alerts rules`",
    "/store/seals": "the files of `audit`",
    "/store/seals/{number}": "the files of `audit`",
    "/store/proofs/{event}": "the files of `audit`",
    "/store/archive": "the same object as `archive` prints; a store has it only after days",
    "/store/cell": "PostgreSQL only",
    "/sandboxes/checkpoints": "lists of `treering.sandbox`, tested there",
    "/sandboxes/checkpoints/{id}": "lists of `treering.sandbox`, tested there",
    "/sandboxes/checkpoints/{id}/output": "bytes",
}


@pytest.fixture
def both(run, tmp_path) -> Iterator[Any]:
    """A store with one of everything; gives a function that reads a thing both ways."""
    with treering.open(tmp_path / ".treering") as store:
        names = fill(store, tmp_path)
        key = run("keys", "create", "--scope", "admin", "--json", "--store", tmp_path / ".treering").json
        with TestClient(create_app(store, Settings()), base_url="http://127.0.0.1:8787") as client:

            def read(command: str, path: str) -> tuple[Any, Any]:
                words = [names.get(word, word) for word in command.split()]
                method, _, path = path.rpartition(" ")
                for place, name in PLACES.items():
                    path = path.replace(place, place.partition("{")[0] + name)
                path = re.sub("[A-Z]+", lambda word: names.get(word[0], word[0]), path)
                answer = client.request(
                    method or "GET",
                    path,
                    headers={"authorization": f"Bearer {key['key']}"},
                    json={} if method else None,
                )
                assert answer.status_code < 300, answer.text
                printed = run(*words, "--json", "--store", tmp_path / ".treering")
                assert printed.out, printed.err
                lines = command.startswith(("replay", "transcript"))
                return [*map(json.loads, printed.out.splitlines())] if lines else printed.json, answer.json()

            yield read


def fill(store: treering.Store, folder: Path) -> dict[str, str]:
    """Write one of everything, and return its ids."""
    files = folder / "files"
    files.mkdir()
    (files / "a.txt").write_text("AKIA" + "Q3EGVX2CNTSQ7ZKP\n")
    thread = store.thread("t")
    first = thread.checkpoint(messages=[{"role": "user", "content": "hello"}], workspace=files)
    (files / "b.txt").write_text("more")
    last = thread.checkpoint(
        messages=[*first.messages, {"role": "assistant", "content": "hello you"}],
        state={"step": 2}, workspace=files, note="a note", tags=["x"],
    )  # fmt: skip
    runs = []
    for number in range(2):
        with store.run("planner", thread=thread, tags=["x"], meta={"a": 1}) as run:
            run.message("user", "hello")
            with run.tool("search", input={"q": number}) as call:
                call.output = "found"
            run.message("assistant", "hello you", model="gpt-5", usage={"input": 5}, cost=1)
        runs.append(run.id)
    store.transcript("t").append("planner", "hello", iter=0)
    thread.compact("They said hello.", keep_last=1)
    store.workspace.snapshot(files)
    thread.fork("fork", at=first.id)
    store.thread("waits").checkpoint(
        messages=[{"role": "user", "content": "pay"}], pending_interrupt={"id": "i", "value": "may I?"}
    )
    store.approvals.set_rule("pay", tool="pay")
    for content in ("words", "more words"):
        store.memory.save("note", content, tags={"x"})
        store.state.set("key", content)
    task = store.schedules.schedule_task("Look.", "interval", 3600)
    store.schedules.run_now(task.id)
    with store.schedules.worker(str) as worker:
        assert worker.idle(30)
    intent = Intent(tool="pay", arguments={"amount": 1}, thread_id="t", run_id=runs[0])
    store.effects.plan(intent)
    store.budgets.set("all", per="store", every="day", tokens=9)
    store.alerts.set_rule("failed", what="failed")
    with pytest.raises(ZeroDivisionError), store.run("planner"):
        1 / 0  # noqa: B018
    store.flush()
    store.alerts.examine()
    store.alerts.set_webhook("hook", "https://example.com/hook")
    (approval,) = store.approvals.list()
    return {
        "CHECKPOINT": first.id, "RUN": runs[0], "OTHER": runs[1], "TASK": task.id, "EFFECT": intent.id,
        "APPROVAL": approval.id, "SNAPSHOT": str(first.snapshot).removeprefix("o:"),
        "LATER": str(last.snapshot).removeprefix("o:"),
    }  # fmt: skip


def keys_of(value: Any, path: str = "") -> Iterator[str]:
    """The place of each key; all items of a list are in one."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield f"{path}.{key}"
            yield from keys_of(each, f"{path}.{key}")
    for each in value if isinstance(value, list) else ():
        yield from keys_of(each, f"{path}[]")


def items(value: Any) -> Any:
    """The list that a page holds."""
    (found,) = (each for name, each in value.items() if isinstance(each, list) and name != "unreadable")
    return found


def test_each_command_prints_what_rest_answers(both):
    different: dict[str, set[str]] = {}
    for command, path in SHAPES.items():
        printed, answered = both(command, path)
        answered = items(answered) if isinstance(printed, list) else answered
        assert printed, f"{command} shows nothing, so nothing is compared"
        allowed = {each for reason in ONLY.values() for each in reason.get(command, "").split()}
        differences = set(keys_of(printed)) ^ set(keys_of(answered))
        different |= (
            {command: left}
            if (left := {each for each in differences if not each.startswith(tuple(allowed))})
            else {}
        )
    assert different == {}


def test_each_route_is_compared_or_says_why_not():
    modules = [import_module(f"treering.server.routes.{name}") for name in ROUTES]
    endpoints = [each for module in modules for each in getattr(module, "ENDPOINTS", ())]
    reads = {each.path for each in endpoints if each.method == "GET" and each.path != "/live"}
    compared = {path.rpartition(" ")[2].partition("?")[0] for path in SHAPES.values()}
    assert reads - compared == set(UNPAIRED)


def test_python_has_the_same_shapes(both, tmp_path):
    with treering.open(tmp_path / ".treering") as store:
        checkpoint = store.thread("t").load().to_dict(content=False)
        *_, run = store.runs.each(agent="planner")
        tree = store.runs.tree(run.id).to_dict()
    printed, _ = both("show t", SHAPES["show t"])
    assert set(checkpoint) == set(printed["checkpoint"]) - {"last_message"}
    printed, _ = both("tree RUN", SHAPES["tree RUN"])
    assert set(keys_of(tree)) == set(keys_of(printed))
