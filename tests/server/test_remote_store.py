"""A remote store end to end: one key, the whole API, two clients, the command line."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

import treering
from tests.server.running import running
from treering.cli.main import main
from treering.core.clock import SystemClock
from treering.errors import Conflict, Forbidden, InvalidInput, NotFound, Unauthorized, Unsupported
from treering.server.auth import Keys
from treering.server.settings import Settings


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def server(folder):
    """A server with one project, and a function that creates keys for it."""
    local = treering.open(folder)
    keys = Keys(local.engine, clock=SystemClock())
    with running(local, Settings(calls_per_second=1e6)) as url:
        yield url, lambda scope="admin", project="acme": keys.create(project=project, scope=scope).token


@pytest.fixture
def store(server):
    url, key = server
    with treering.open(url, api_key=key()) as opened:
        yield opened


def test_two_clients_share_a_thread(server, store):
    url, key = server
    with treering.open(url, api_key=key("write")) as other:
        mine = store.thread("support/alice")
        first = mine.append({"role": "user", "content": "Where is my refund?"}, state={"tries": 1})
        theirs = other.thread("support/alice")
        assert theirs.load().messages == [{"role": "user", "content": "Where is my refund?"}]
        theirs.append({"role": "assistant", "content": "It was sent."})
        assert mine.load().message_count == 2
        fork = other.thread("support/alice").fork("bolder", at=first.id)
        fork.append({"role": "assistant", "content": "Which refund?"})
        assert [each.id for each in store.threads()] == ["bolder", "support/alice"]
        assert store.thread("bolder").load().state == {"tries": 1}


def test_a_run_its_cost_and_its_timeline(store):
    with store.run(agent="planner", thread="t") as run:
        with run.span("search", kind="tool"):
            pass
        run.message("assistant", "On page 3.", model="gpt-5", usage={"input": 1000, "output": 10})
    store.flush()
    assert store.runs.load(run.id).status == "ok"
    report = store.cost.of_run(run.id)
    assert report.total.tokens == 1010
    assert report.total.amounts.keys() == {"USD"}
    types = [event.type for event in store.timeline.each_of_run(run.id)]
    assert types == ["tool.call", "tool.result", "message"]


def test_files_memory_state_and_schedules(store, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "report.md").write_text("# One\n")
    (work / "data.bin").write_bytes(bytes(range(256)) * 10_000)
    snapshot = store.workspace.snapshot(work)  # 2.5 MB, in chunks
    (work / "report.md").write_text("# Two\n")
    store.workspace.restore(snapshot, work)
    assert (work / "report.md").read_text() == "# One\n"

    store.memory.save("taste", "Alice likes green tea")
    assert [hit.document.id for hit in store.memory.search("tea").hits] == ["taste"]
    store.memory.forget("taste")
    assert store.memory.get("taste") is None

    assert store.state.add("count", 5) == 5
    store.state.set("config", {"depth": 3})
    with pytest.raises(Conflict):
        store.state.set("config", {}, if_version=7)

    task = store.schedules.interval(3600, prompt="Look at the inbox")
    done = threading.Event()
    with store.schedules.worker(lambda occurrence: occurrence.prompt, deliver=lambda *_: done.set()):
        store.schedules.run_now(task.id)
        assert done.wait(60)
    assert [occurrence.outcome for occurrence in store.schedules.occurrences(task.id)] == ["ok"]


def test_maintenance(store):
    thread = store.thread("t")
    for number in range(5):
        thread.append({"role": "user", "content": f"{number} " + "x" * 5000})
    assert store.verify().ok
    assert store.stats().rows["objects"] == 5
    store.forget(thread="t")
    with pytest.raises(NotFound):
        store.forget(thread="t")
    assert store.gc(grace_seconds=0).swept.objects == 0
    store.reindex()
    assert store.verify().ok


def test_a_read_key_can_only_read(server, store):
    url, key = server
    store.state.set("x", 1)
    with treering.open(url, api_key=key("read")) as reader:
        assert reader.state.get("x") == 1
        with pytest.raises(Forbidden, match="scope 'write'"):
            reader.state.set("x", 2)
    with treering.open(url, api_key=key("write")) as writer:
        writer.state.set("x", 3)
        with pytest.raises(Forbidden, match="scope 'admin'"):
            writer.verify()


def test_a_local_store_moves_to_the_server_and_back(store, tmp_path):
    with treering.open(tmp_path / "laptop") as laptop:
        for number in range(30):
            laptop.thread("t").append({"role": "user", "content": f"{number} " + "x" * 5000})
        report = laptop.copy_to(store)
        assert (report.space, report.into) == ("default", "default")
        before = laptop.thread("t").load().messages
        assert store.thread("t").load().messages == before
        laptop.thread("t").append({"role": "user", "content": "later"})
        assert laptop.copy_to(store).resumed
        assert store.thread("t").load().message_count == 31
    backup = store.backup(tmp_path / "backup")
    assert backup.method == "copy"
    with treering.open(tmp_path / "backup") as copy:
        assert copy.thread("t").load().message_count == 31
        assert copy.verify().ok


def test_namespaces_are_within_the_project(server, store, folder):
    url, key = server
    token = key("write")
    with treering.open(url, api_key=token, namespace="staging") as staging:
        staging.state.set("x", "staging")
        assert store.state.get("x") is None
        assert store.in_namespace("staging").state.get("x") == "staging"
        assert staging.space == "staging"
    with treering.open(url, api_key=key("write", "other"), namespace="staging") as other:
        assert other.state.get("x") is None
    with (
        treering.open(url, api_key=token, namespace="acme") as wrong,
        pytest.raises(InvalidInput, match="acme"),
    ):
        wrong.state.get("x")
    with treering.open(folder, namespace="acme") as local:
        assert local.state.get("x") is None
        assert "staging" in {name.rpartition(".")[2] for name in local.engine.spaces()}


def test_the_async_api(server):
    url, key = server
    token = key()

    async def talk():
        async with treering.open_async(url, api_key=token) as store:
            thread = store.thread("t")
            await thread.append({"role": "user", "content": "hello"})
            checkpoint = await thread.load()
            batch = store.draft()
            batch.set_ref("r", b"x", scope="/test/x")
            receipts = await asyncio.gather(*[store.commit(batch) for _ in range(5)])
            return checkpoint.message_count, {receipt.last_seq for receipt in receipts}

    count, seqs = asyncio.run(talk())
    assert (count, len(seqs)) == (1, 1)


def test_url_and_key_may_be_in_the_environment(server, store, monkeypatch):
    url, key = server
    store.state.set("x", 1)
    monkeypatch.setenv("TREERING_URL", url)
    monkeypatch.setenv("TREERING_API_KEY", key("read"))
    with treering.open() as opened:
        assert opened.url == url
        assert opened.state.get("x") == 1


def test_a_follower_sees_commits_of_other_clients(server, store):
    url, key = server
    heard = threading.Event()

    def follow():
        next(store.state.watch("job/", seconds=60))
        heard.set()

    follower = threading.Thread(target=follow)
    follower.start()
    with treering.open(url, api_key=key("write")) as other:
        for _ in range(600):  # whenever the follower has started
            other.state.add("job/ticks")
            if heard.wait(0.1):
                break
    assert heard.is_set()
    follower.join(60)


def test_the_command_line(server, store, capsys, monkeypatch):
    url, key = server
    store.thread("support/alice").append({"role": "user", "content": "Where is my refund?"})

    def run(*arguments, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--store", url])
        captured = capsys.readouterr()
        assert (ended.value.code or 0) == code, captured
        return captured.out or captured.err

    monkeypatch.delenv("TREERING_API_KEY", raising=False)
    assert "key" in run("threads", code=Unauthorized.exit_code)
    monkeypatch.setenv("TREERING_API_KEY", key())
    assert [each["id"] for each in json.loads(run("threads", "--json"))] == ["support/alice"]
    assert "refund" in run("show", "support/alice")
    assert "ok" in run("verify").lower()
    assert json.loads(run("stats", "--json"))
    run("migrate", code=Unsupported.exit_code)
    monkeypatch.setenv("TREERING_API_KEY", key("read"))
    assert "admin" in run("verify", code=Forbidden.exit_code)


def test_a_langgraph_agent_keeps_its_checkpoints_on_the_server(server, store):
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import START, MessagesState, StateGraph

    from treering.adapters.langgraph import TreeringSaver

    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(f"{len(state['messages'])} so far")]})
    builder.add_edge(START, "answer")
    place = {"configurable": {"thread_id": "support/alice"}}
    url, key = server
    for number in range(3):
        with treering.open(url, api_key=key("write")) as another:
            graph = builder.compile(checkpointer=TreeringSaver(another))
            result = graph.invoke({"messages": [HumanMessage("hello")]}, place)
        assert result["messages"][-1].content == f"{2 * number + 1} so far"
    assert store.thread("support/alice").load().message_count == 6
