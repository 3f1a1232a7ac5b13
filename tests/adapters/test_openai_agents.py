"""The OpenAI Agents SDK on treering: its own session's behaviour, real runs, and what a thread adds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import httpx
import pytest
from agents import Agent, RunConfig, RunHooks, Runner, Session, SessionSettings, SQLiteSession, function_tool
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel, assistant_message, function_call
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

import treering
from tests.adapters import openai_worker
from treering.adapters.openai_agents import UNFINISHED, TreeringSession
from treering.errors import Closed, InvalidInput, Unencodable

ROOT = Path(__file__).resolve().parents[2]
QUIET = RunConfig(tracing_disabled=True)


def say(text, role="user"):
    return {"role": role, "content": text}


def texts(items):
    return [item["content"] for item in items]


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


# --- the same tests for the SDK's own session and for ours -------------------------------------------


@pytest.fixture(params=["SQLiteSession", "memory", "sqlite", "postgres"])
def make_session(request, tmp_path):
    """A function that gives sessions of one place, by id."""
    if request.param == "SQLiteSession":
        made = []

        def make(session_id, **options):
            made.append(SQLiteSession(session_id, tmp_path / "sessions.db", **options))
            return made[-1]

        yield make
        for session in made:
            session.close()
        return
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else tmp_path / "store"
    with treering.open(url) as opened:
        yield lambda session_id, **options: TreeringSession(session_id, opened, **options)


def test_a_session_is_one_by_the_protocol(make_session):
    session = make_session("s")
    assert isinstance(session, Session)
    assert session.session_id == "s"
    assert session.session_settings == SessionSettings()


def test_items_come_back_as_they_were_and_in_order(make_session):
    items = [
        say("hello"),
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}', "id": "fc_1"},
        {"type": "function_call_output", "call_id": "c1", "output": "ünïcode \u2028 \U0001f600"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {"role": "assistant", "content": [{"type": "output_text", "text": "x" * 9000, "annotations": []}]},
    ]

    async def main():
        session = make_session("s")
        assert await session.get_items() == []
        await session.add_items(items[:2])
        await session.add_items(items[2:])
        await session.add_items([])
        assert await session.get_items() == items
        assert await make_session("s").get_items() == items
        assert await make_session("other").get_items() == []

    asyncio.run(main())


@pytest.mark.parametrize("limit, expected", [(None, 5), (0, 0), (1, 1), (3, 3), (5, 5), (99, 5), (-1, 5)])
def test_a_limit_gives_the_last_items_in_order(make_session, limit, expected):
    async def main():
        session = make_session("s")
        await session.add_items([say(str(number)) for number in range(5)])
        found = texts(await session.get_items(limit))
        assert found == [str(number) for number in range(5 - expected, 5)]

    asyncio.run(main())


def test_the_sessions_settings_limit_what_is_read_unless_the_call_says_so(make_session):
    async def main():
        for given_settings in (SessionSettings(limit=2), {"limit": 2}):
            session = make_session("s", session_settings=given_settings)
            await session.clear_session()
            await session.add_items([say("a"), say("b"), say("c")])
            assert session.session_settings.limit == 2
            assert texts(await session.get_items()) == ["b", "c"]
            assert texts(await session.get_items(limit=1)) == ["c"]
            assert texts(await session.get_items(limit=10)) == ["a", "b", "c"]

    asyncio.run(main())


def test_the_last_item_is_popped_until_none_is_left(make_session):
    async def main():
        session = make_session("s")
        assert await session.pop_item() is None
        await session.add_items([say("a"), say("b")])
        assert await session.pop_item() == say("b")
        await session.add_items([say("c"), say("d")])
        assert texts(await make_session("s").get_items()) == ["a", "c", "d"]
        assert [(await session.pop_item())["content"] for _ in range(3)] == ["d", "c", "a"]
        assert await session.pop_item() is None
        assert await session.get_items() == []
        await session.add_items([say("e")])
        assert texts(await session.get_items()) == ["e"]

    asyncio.run(main())


def test_a_cleared_session_is_empty_and_can_go_on(make_session):
    async def main():
        session, other = make_session("s"), make_session("other")
        await session.clear_session()
        await session.add_items([say("a")])
        await other.add_items([say("other's")])
        await session.clear_session()
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items([say("b")])
        assert texts(await session.get_items()) == ["b"]
        assert texts(await other.get_items()) == ["other's"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "session_id",
    ["a/b", "a//b", "%2F", "..", "ü \U0001f600", "", " ", "line\nbreak", "x" * 2000, "~" + "0" * 64],
)
def test_a_session_id_is_any_string(make_session, session_id):
    async def main():
        session, other = make_session(session_id), make_session(session_id + "x")
        await session.add_items([say("mine")])
        await other.add_items([say("other's")])
        assert session.session_id == session_id
        assert texts(await make_session(session_id).get_items()) == ["mine"]

    asyncio.run(main())


def test_concurrent_writers_lose_nothing_and_keep_their_own_order(make_session):
    async def write(session, name):
        for number in range(15):
            await session.add_items([say(f"{name} {number} a"), say(f"{name} {number} b")])

    async def main():
        await asyncio.gather(*(write(make_session("s"), name) for name in ("x", "y", "z")))
        found = texts(await make_session("s").get_items())
        assert len(found) == 90
        for name in ("x", "y", "z"):
            own = [text for text in found if text.startswith(name)]
            assert own == [f"{name} {number} {part}" for number in range(15) for part in "ab"]
        assert all(found[at][:-1] == found[at + 1][:-1] for at in range(0, 90, 2))

    asyncio.run(main())


def test_concurrent_pops_give_every_item_once(make_session):
    async def main():
        sessions = [make_session("s"), make_session("s")]
        await sessions[0].add_items([say(str(number)) for number in range(12)])
        popped = await asyncio.gather(*(sessions[number % 2].pop_item() for number in range(14)))
        assert sorted(texts(filter(None, popped))) == sorted(map(str, range(12)))
        assert popped.count(None) == 2

    asyncio.run(main())


def test_what_cannot_be_stored_is_refused_and_leaves_nothing(make_session):
    async def main():
        session = make_session("s")
        with pytest.raises((TypeError, Unencodable)):
            await session.add_items([say("a"), {"role": "user", "content": object()}])
        assert await session.get_items() == []

    asyncio.run(main())


def test_a_real_run_remembers_what_was_said(make_session):
    async def main():
        model = ScriptedModel([[assistant_message("Hello Alice.")], [assistant_message("You are Alice.")]])
        agent = Agent(name="greeter", model=model)
        await Runner.run(agent, "I am Alice.", session=make_session("s"), run_config=QUIET)
        result = await Runner.run(agent, "Who am I?", session=make_session("s"), run_config=QUIET)
        assert result.final_output == "You are Alice."
        seen = model.last_call.input
        assert [item["role"] for item in seen] == ["user", "assistant", "user"]
        assert [seen[0]["content"], seen[2]["content"]] == ["I am Alice.", "Who am I?"]
        model.assert_complete()

    asyncio.run(main())


def test_a_real_run_with_tools_and_a_handoff_is_kept_the_same(make_session, tmp_path):
    """Run on ours (or theirs), and on theirs: the items must be the same."""

    def agent():
        @function_tool
        def lookup(order: int) -> str:
            """Look an order up."""
            return f"order {order} was sent on Monday"

        clerk = Agent(
            name="clerk",
            model=ScriptedModel(
                [
                    [function_call("lookup", {"order": 7}, call_id="c2")],
                    [assistant_message("It was sent on Monday.")],
                ]
            ),
            tools=[lookup],
        )
        desk = ScriptedModel([[function_call("transfer_to_clerk", {}, call_id="c1")]])
        return Agent(name="desk", model=desk, handoffs=[clerk])

    async def items(session, *, streamed):
        if streamed:
            result = Runner.run_streamed(agent(), "Where is order 7?", session=session, run_config=QUIET)
            kinds = [event.type async for event in result.stream_events()]
            assert "raw_response_event" in kinds
        else:
            result = await Runner.run(agent(), "Where is order 7?", session=session, run_config=QUIET)
        assert result.final_output == "It was sent on Monday."
        assert result.last_agent.name == "clerk"
        return await session.get_items()

    async def main():
        theirs = SQLiteSession("theirs", tmp_path / "theirs.db")
        expected = await items(theirs, streamed=False)
        theirs.close()
        assert [item.get("type", "message") for item in expected] == [
            "message",
            "function_call",
            "function_call_output",
            "function_call",
            "function_call_output",
            "message",
        ]
        assert _without_ids(await items(make_session("run"), streamed=False)) == _without_ids(expected)
        assert _without_ids(await items(make_session("streamed"), streamed=True)) == _without_ids(expected)

    asyncio.run(main())


def test_the_sdks_own_wrappers_go_around_it(make_session):
    """Encryption at rest, and compaction by a real client whose server is scripted."""
    summary = {"type": "compaction", "id": "cmp_1", "encrypted_content": "a year of growth"}

    def compact(request):
        assert request.url.path.endswith("/responses/compact")
        return httpx.Response(
            200,
            json={
                "id": "resp_1",
                "object": "response.compaction",
                "created_at": 1,
                "output": [summary],
                "usage": {
                    "input_tokens": 1,
                    "output_tokens": 1,
                    "total_tokens": 2,
                    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                    "output_tokens_details": {"reasoning_tokens": 0},
                },
            },
        )

    async def main():
        hidden = EncryptedSession("e", make_session("e"), encryption_key="made up", ttl=600)
        model = ScriptedModel([[assistant_message("Noted.")], [assistant_message("It is 7.")]])
        agent = Agent(name="keeper", model=model)
        for question in ("The number is 7.", "What is it?"):
            result = await Runner.run(agent, question, session=hidden, run_config=QUIET)
        assert result.final_output == "It is 7."
        assert len(model.last_call.input) == 3
        assert "The number" not in str(await make_session("e").get_items())

        async with httpx.AsyncClient(transport=httpx.MockTransport(compact)) as http:
            client = AsyncOpenAI(api_key="made up", http_client=http)
            short = OpenAIResponsesCompactionSession("c", make_session("c"), client=client)
            await short.add_items([say("a"), say("b", "assistant")])
            await short.run_compaction({"force": True, "compaction_mode": "input"})
            (kept,) = await make_session("c").get_items()
            assert (kept["type"], kept["encrypted_content"]) == ("compaction", "a year of growth")

    asyncio.run(main())


def _without_ids(items):
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


# --- what a thread adds ------------------------------------------------------------------------------


def test_a_session_is_a_thread_with_all_its_moments(store):
    async def main():
        session = TreeringSession("support/alice", store)
        await session.add_items([say("a"), say("b")])
        await session.add_items([say("c")])
        await session.pop_item()
        await session.clear_session()

    asyncio.run(main())
    (info,) = store.threads()
    assert (info.id, info.step) == ("support/alice", 3)
    thread = store.thread("support/alice")
    assert [len(moment.messages) for moment in thread.history()] == [0, 2, 3, 2]
    assert [moment.note for moment in thread.history()] == ["clear_session", "pop_item", None, None]
    thread.rewind(1)
    assert texts(asyncio.run(TreeringSession("support/alice", store).get_items())) == ["a", "b", "c"]
    fork = thread.fork("support/alice-2")
    asyncio.run(TreeringSession(fork.id, store).add_items([say("elsewhere")]))
    assert texts(fork.load().messages) == ["a", "b", "c", "elsewhere"]
    assert texts(thread.load().messages) == ["a", "b", "c"]
    assert store.verify().ok


def test_a_session_whose_id_cannot_be_a_threads_is_found_by_its_metadata(store):
    session = TreeringSession("line\nbreak", store)
    asyncio.run(session.add_items([say("a")]))
    (info,) = store.threads()
    assert info.id == session.thread_id
    assert store.thread(info.id).load().metadata == {"session_id": "line\nbreak"}
    with pytest.raises(InvalidInput, match="session id is of type int"):
        TreeringSession(7, store)


def test_namespaces_do_not_see_each_other(store):
    async def main():
        alice, bob = (TreeringSession("s", store, namespace=name) for name in ("alice", "bob"))
        await alice.add_items([say("alice's")])
        assert await bob.get_items() == []
        assert await TreeringSession("s", store).get_items() == []
        assert await TreeringSession("s", store.in_namespace("other")).get_items() == []
        await bob.add_items([say("bob's")])
        assert [info.namespace for info in store.threads(namespace=None)] == ["bob", "alice"]
        store.forget(namespace="alice")
        assert await alice.get_items() == []
        assert texts(await bob.get_items()) == ["bob's"]

    asyncio.run(main())


ODD = st.text("a/%~\n\u00fc", max_size=3) | st.sampled_from(["~" + "0" * 64, "x" * 600])


@given(st.sets(st.tuples(st.sampled_from(["one", "two"]), ODD, ODD), min_size=2, max_size=8))
@settings(max_examples=40)
def test_no_session_reads_what_another_wrote(places):
    """Spaces, namespaces and ids of any kind: whoever differs in one of them is someone else."""

    async def main():
        with treering.open("memory:") as opened:
            for space, namespace, session_id in places:
                session = TreeringSession(session_id, opened.in_namespace(space), namespace=namespace)
                await session.add_items([say(repr((space, namespace, session_id)))])
            for space, namespace, session_id in places:
                session = TreeringSession(session_id, opened.in_namespace(space), namespace=namespace)
                assert texts(await session.get_items()) == [repr((space, namespace, session_id))]

    asyncio.run(main())


def test_only_the_tail_is_read(store, monkeypatch):
    async def main():
        session = TreeringSession("s", store)
        await session.add_items([say(str(number)) for number in range(500)])
        reads = []
        read_list = store.engine.read_list
        monkeypatch.setattr(
            store.engine, "read_list", lambda *asked: reads.append(asked[2:]) or read_list(*asked)
        )
        assert texts(await session.get_items(limit=2)) == ["498", "499"]
        await session.pop_item()
        await session.add_items([say("new")])
        await session.pop_item()
        assert reads == [(498, 500), (499, 500), (499, 500)]
        assert texts(await session.get_items(limit=1)) == ["498"]

    asyncio.run(main())


def test_items_are_added_without_looking_unless_someone_else_was_there(store, monkeypatch):
    looks = []
    refs = store.engine.refs
    monkeypatch.setattr(store.engine, "refs", lambda *asked: looks.append(1) or refs(*asked))

    async def main():
        session = TreeringSession("s", store)
        for text in "abc":
            await session.add_items([say(text)])
        assert len(looks) == 1
        other = TreeringSession("s", store)
        await other.save_tool_result(
            [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}],
            {"type": "function_call_output", "call_id": "c", "output": "o"},
            tool="f",
        )
        await session.add_items([say("d")])
        await session.pop_item()
        await session.add_items([say("e")])
        found = await other.get_items()
        assert [item.get("type", item.get("content")) for item in found] == [
            *"abc",
            "function_call",
            "function_call_output",
            "e",
        ]
        store.thread("s").delete()
        await session.add_items([say("anew")])
        assert texts(await other.get_items()) == ["anew"]

    asyncio.run(main())


def test_writers_of_two_stores_on_one_folder_lose_nothing(tmp_path):
    """Two openings share nothing but the disk, as two processes do."""

    async def write(session, name):
        for number in range(20):
            await session.add_items([say(f"{name} {number}")])
            if number % 5 == 4:
                await session.add_items([say("to be taken back")])
                await session.pop_item()

    async def main():
        async with TreeringSession("s", tmp_path) as one, TreeringSession("s", tmp_path) as other:
            await asyncio.gather(write(one, "x"), write(other, "y"))
            return texts(await one.get_items())

    found = asyncio.run(main())
    assert len(found) == 40
    with treering.open(tmp_path) as opened:
        written = {
            message["content"]
            for moment in opened.thread("s").history(everything=True)
            for message in moment.last_messages(2)
        }
        assert {f"{name} {number}" for name in "xy" for number in range(20)} <= written
        assert opened.verify().ok


def test_calls_on_one_session_take_effect_in_the_order_they_were_made(store):
    async def main():
        session = TreeringSession("s", store)
        *_, found = await asyncio.gather(
            *(session.add_items([say(str(number))]) for number in range(20)),
            session.pop_item(),
            session.get_items(),
        )
        assert texts(found) == [str(number) for number in range(19)]

    asyncio.run(main())


def test_the_stores_hooks_fire_change_and_veto(store):
    seen, loops = [], []

    async def stamp(saving):
        loops.append(asyncio.get_running_loop())
        return {"metadata": {**saving.metadata, "stamped": True}}

    store.hooks.add("pre_checkpoint_save", stamp)
    store.hooks.add("post_checkpoint_save", lambda saved: seen.append(("saved", saved.checkpoint.step)))
    store.hooks.add("post_checkpoint_load", lambda saved: seen.append(("loaded", saved.checkpoint.step)))

    async def main():
        session = TreeringSession("s", store)
        await session.add_items([say("a")])
        await session.get_items()
        assert seen == [("saved", 0), ("loaded", 0)]
        assert loops == [asyncio.get_running_loop()]
        assert store.thread("s").head.metadata == {"stamped": True}
        store.hooks.add("pre_checkpoint_save", lambda saving: saving.thread_id != "s")
        await session.add_items([say("b")])
        assert await session.pop_item() is None
        assert texts(await session.get_items()) == ["a"]

    asyncio.run(main())


def test_only_a_store_that_the_session_opened_is_closed_with_it(tmp_path):
    async def main():
        async with TreeringSession("s", str(tmp_path / "own")) as session:
            await session.add_items([say("a")])
        with pytest.raises(Closed):
            await session.get_items()
        session.close()
        async with treering.open_async(tmp_path / "own") as shared:
            async with TreeringSession("s", shared) as first:
                assert texts(await first.get_items()) == ["a"]
            await first.add_items([say("b")])
            assert texts(await TreeringSession("s", shared.sync).get_items()) == ["a", "b"]
        with pytest.raises(InvalidInput, match="int is not a store"):
            TreeringSession("s", 7)

    asyncio.run(main())


def test_a_cancelled_writer_hears_of_it_when_the_write_has_ended(store):
    entered, go_on = Event(), Event()

    def hold(_):
        entered.set()
        assert go_on.wait(30)

    store.hooks.add("pre_checkpoint_save", hold)

    async def main():
        session = TreeringSession("s", store)
        writing = asyncio.ensure_future(session.add_items([say("a")]))
        await asyncio.to_thread(entered.wait)
        writing.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not writing.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert texts(store.thread("s").head.messages) == ["a"]

    asyncio.run(main())


def test_a_session_may_be_used_from_one_loop_after_another(store):
    session = TreeringSession("s", store)
    for text in "abc":
        asyncio.run(session.add_items([say(text)]))
    assert texts(asyncio.run(session.get_items())) == ["a", "b", "c"]


def test_without_the_sdk_the_extra_is_named():
    code = (
        "import sys; sys.modules['agents'] = None\n"
        "try:\n    import treering.adapters.openai_agents\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.startswith("MissingExtra")
    assert "pip install 'treering[openai-agents]'" in done.stdout


# --- tool results as they come, and death in between -------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_each_tool_result_is_saved_when_it_is_there(store, tmp_path, streamed):
    calls = []

    class Own(RunHooks):
        async def on_agent_start(self, _context, agent):
            calls.append(("agent", agent.name))

        async def on_llm_start(self, _context, _agent, _prompt, input_items):
            calls.append(("asked", len(input_items)))

        async def on_llm_end(self, _context, _agent, response):
            calls.append(("said", len(response.output)))

        async def on_tool_start(self, _context, _agent, tool):
            calls.append(("start", tool.name))

        async def on_tool_end(self, _context, _agent, _tool, result):
            calls.append(("end", result))

        async def on_handoff(self, _context, from_agent, to_agent):
            calls.append(("handoff", from_agent.name, to_agent.name))

        async def on_agent_end(self, _context, _agent, output):
            calls.append(("answer", output))

    async def main():
        session = TreeringSession("s", store)
        adder = openai_worker.make_agent(tmp_path, "parallel")
        desk = ScriptedModel([[function_call("transfer_to_adder", {}, call_id="c0")]])
        agent = Agent(name="desk", model=desk, handoffs=[adder])
        options = {
            "session": session,
            "hooks": session.checkpoint_after_tool_call(Own()),
            "run_config": QUIET,
        }
        if streamed:
            result = Runner.run_streamed(agent, openai_worker.QUESTION, **options)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, openai_worker.QUESTION, **options)
        assert result.final_output == openai_worker.ANSWER
        return await session.get_items()

    items = asyncio.run(main())
    assert [item.get("type", "message") for item in items] == [
        "message",
        "function_call",
        "function_call_output",
        *["function_call"] * 4,
        *["function_call_output"] * 4,
        "message",
    ]
    tools = [("start", "square")] * 4 + [("end", f"{number}:{number**2}") for number in (1, 2, 3, 4)]
    assert sorted(calls[7:15]) == sorted(tools)
    assert calls[:7] == [
        ("agent", "desk"),
        ("asked", 1),
        ("said", 1),
        ("handoff", "desk", "adder"),
        ("agent", "adder"),
        ("asked", 3),
        ("said", 4),
    ]
    assert calls[15:] == [("asked", 11), ("said", 1), ("answer", openai_worker.ANSWER)]
    moments = list(store.thread("s").history())
    assert [moment.note for moment in moments] == [None, None, *["tool: square"] * 4, None, None]
    assert [len(moment.state.get(UNFINISHED, {})) for moment in moments] == [0, 0, 5, 4, 3, 2, 0, 0]


def test_an_unfinished_turn_is_read_and_then_kept_once(store):
    response = [
        {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
        for number in (1, 2)
    ]
    outputs = [
        {"type": "function_call_output", "call_id": f"c{number}", "output": str(number)} for number in (1, 2)
    ]

    async def begin(session_id):
        session = TreeringSession(session_id, store)
        await session.add_items([say("q")])
        store.thread(session_id).checkpoint(state={"own": 1})
        for output in outputs:
            await session.save_tool_result(response, output, tool="f")
        whole = [say("q"), *response, *outputs]
        assert await session.get_items() == whole
        assert await session.get_items(limit=3) == whole[-3:]
        assert await session.get_items(limit=5) == whole
        return TreeringSession(session_id, store), whole

    async def main():
        session, whole = await begin("same turn")
        await session.add_items([*response, *outputs])
        assert await session.get_items() == whole == store.thread("same turn").head.messages
        assert store.thread("same turn").head.state == {"own": 1}

        session, whole = await begin("another turn")
        await session.add_items([say("never mind")])
        assert await session.get_items() == [*whole, say("never mind")]
        assert store.thread("another turn").head.messages == [*whole, say("never mind")]

        session, whole = await begin("next response")
        other = [{"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"}]
        output = {"type": "function_call_output", "call_id": "c3", "output": "3"}
        await session.save_tool_result(other, output, tool="f")
        assert await session.get_items() == [*whole, *other, output]

        session, whole = await begin("pop")
        assert await session.pop_item() == outputs[1]
        assert await session.get_items() == whole[:-1]

        session, whole = await begin("clear")
        await session.clear_session()
        assert await session.get_items() == []
        assert store.thread("clear").head.state == {"own": 1}

    asyncio.run(main())


@pytest.mark.faults
@pytest.mark.timeout(300)  # importing the SDK in each process takes most of it
def test_a_run_that_was_killed_goes_on_in_another_process(tmp_path):
    """Killed while its third tool runs; the first two are not run again and the answer is right.

    That is between turns; the example is killed within one.
    """
    command = [sys.executable, "-m", "tests.adapters.openai_worker", str(tmp_path)]
    with subprocess.Popen([*command, "3"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        said = [worker.stdout.readline().strip() for _ in range(3)]
        os.kill(worker.pid, signal.SIGKILL)
    assert said == ["None"] * 3
    first = (tmp_path / "ran.txt").read_text().split()
    assert first in (["1", "2"], ["1", "2", "3"])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"answer: {openai_worker.ANSWER}"
    assert (tmp_path / "ran.txt").read_text().split() == [*first, "3", "4"]
    with treering.open(tmp_path / "store") as store:
        messages = store.thread("squares").load().messages
        outputs = [item["output"] for item in messages if item.get("type") == "function_call_output"]
        assert outputs == ["1:1", "2:4", "3:9", "4:16"]
        assert store.verify().ok


@pytest.mark.faults
@pytest.mark.timeout(300)  # importing the SDK in each process takes most of it
def test_the_example_goes_on_after_the_kill():
    command = [sys.executable, str(ROOT / "examples" / "openai_agents_session.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "One process begins:",
        "  looking up bark",
        "  looking up rings",
        "  ended with SIGKILL",
        "Another one goes on:",
        "  looking up roots",
        "  Read: bark, rings, roots.",
        "6 moments, 9 items, verified: True",
    ]
