"""Steps over REST, and reruns that the server makes in a process of its own."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

import treering
from tests.server.running import running
from treering.replays.rerun import call_entry
from treering.server.auth import Keys
from treering.server.settings import Settings

AGENT = '''
    from treering.agent import create_agent


    def model(messages, tools):
        said = sum(each["role"] == "assistant" for each in messages)
        if not said:
            calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        return {"role": "assistant", "content": "It was sent."}


    def other(messages, tools):
        reply = model(messages, tools)
        return reply if reply["content"] is None else {"role": "assistant", "content": "It was lost."}


    def slow(messages, tools):
        import time

        time.sleep(600)


    def agent():
        def look() -> str:
            """Look it up."""
            return "found"

        return create_agent(model=model, tools=[look]).generate(prompt="Where is it?").text
'''


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[treering.Store, str, str]]:
    """A store with a recorded run, the run, and the file of its agent."""
    path = tmp_path / "support_agent.py"
    path.write_text(textwrap.dedent(AGENT))
    entry = f"{path}:agent"
    with treering.open(tmp_path / "store") as store:
        with treering.record(store, agent="support", entry=entry) as run:
            call_entry(entry, [])
        store.flush()
        yield store, run.id, str(path)


def test_the_steps_of_a_run_are_listed_shown_and_found(recorded):
    store, run, _ = recorded
    with running(store) as url, httpx.Client(base_url=url) as client:
        steps = client.get(f"/runs/{run}/steps").json()["steps"]
        assert [each["type"] for each in steps] == ["llm", "tool", "llm"]
        assert client.get(f"/runs/{run}/steps/count").json() == {"steps": 3}
        page = client.get(f"/runs/{run}/steps", params={"limit": 2}).json()
        assert page["next_cursor"]
        view = client.get(f"/runs/{run}/steps/2").json()
        assert (view["step"]["name"], view["output_value"], view["is_last"]) == ("look", "found", False)
        found = client.get(f"/runs/{run}/steps/find", params={"tool": ["look"], "after": 1}).json()
        assert found["step"]["number"] == 2
        assert client.get(f"/runs/{run}/steps/find", params={"error": True}).json() == {"step": None}
        assert client.get(f"/runs/{run}/steps/find").status_code == 422
        assert client.get(f"/runs/{run}/steps/9").status_code == 404
        assert client.get(f"/runs/{run}/steps/x").status_code == 404


def test_a_server_that_was_not_told_to_rerun_refuses_and_says_why(recorded):
    store, run, _ = recorded
    with running(store) as url, httpx.Client(base_url=url) as client:
        about = client.get(f"/runs/{run}/reruns").json()
        assert (about["can_start"], about["calls"], about["comparison"]) == (False, 3, None)
        assert "--reruns" in about["why_not"]
        refused = client.post(f"/runs/{run}/reruns", json={"from_step": 3})
        assert refused.status_code == 409
        assert "--reruns" in refused.json()["detail"]


def finished(client: httpx.Client, run: str) -> dict:
    for _ in range(1200):
        about = client.get(f"/runs/{run}/reruns").json()
        if about["jobs"][0]["status"] != "running":
            return about
        time.sleep(0.05)
    raise AssertionError(about)


def environment(store: treering.Store) -> dict[str, str]:
    return {"TREERING_URL": urlsplit(store.url).path.removeprefix("/")}


def test_a_server_reruns_a_run_and_compares(recorded):
    store, run, path = recorded
    with running(store, Settings(reruns=environment(store))) as url, httpx.Client(base_url=url) as client:
        order = {"from_step": 3, "model": [f"{path}:other", f"{path}:model"], "repeat": 2}
        job = client.post(f"/runs/{run}/reruns", json=order)
        assert (job.status_code, job.json()["total"]) == (202, 4)
        about = finished(client, run)
        (made,) = about["jobs"]
        assert (made["status"], made["done"], made["error"]) == ("done", 4, None)
        assert made["group"] == about["comparison"]["group"]
        assert {each["final"] for each in about["comparison"]["reruns"]} == {"It was lost.", "It was sent."}
        assert [each["runs"] for each in about["comparison"]["variants"]] == [2, 2]


def test_a_rerun_that_fails_says_why_and_one_that_hangs_is_cancelled(recorded):
    store, run, path = recorded
    with running(store, Settings(reruns=environment(store))) as url, httpx.Client(base_url=url) as client:
        client.post(f"/runs/{run}/reruns", json={"from_step": 2, "model": [f"{path}:missing"]})
        (failed,) = finished(client, run)["jobs"]
        assert failed["status"] == "failed"
        assert "missing" in failed["error"]
        job = client.post(f"/runs/{run}/reruns", json={"from_step": 3, "model": [f"{path}:slow"]}).json()
        again = client.post(f"/runs/{run}/reruns", json={"from_step": 3})
        assert again.status_code == 409
        stopped = client.delete(f"/runs/{run}/reruns/{job['id']}").json()
        assert stopped["status"] == "cancelled"


def test_only_an_admin_may_rerun(recorded):
    store, run, _ = recorded
    writer = Keys(store.engine, clock=store.clock).create(scope="write").token
    with running(store, Settings(reruns=environment(store))) as url, httpx.Client(base_url=url) as client:
        headers = {"authorization": f"Bearer {writer}"}
        assert client.get(f"/runs/{run}/reruns", headers=headers).status_code == 200
        refused = client.post(f"/runs/{run}/reruns", headers=headers, json={"from_step": 3})
        assert refused.status_code == 403
