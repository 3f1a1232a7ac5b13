"""A session of the OpenAI Agents SDK: the same tests for the SDK's own and for ours, and real runs."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from agents import Agent, Runner, Session, SessionSettings, SQLiteSession, function_tool
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel, assistant_message, function_call
from openai import AsyncOpenAI

import treering
from tests.adapters.openai_agents.items import QUIET, say, texts
from tests.server.running import remote
from treering.adapters.openai_agents import TreeringSession
from treering.errors import InvalidInput, Unencodable


@pytest.fixture(params=["SQLiteSession", "memory", "sqlite", "postgres", "remote"])
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
    if request.param == "remote":
        with remote() as opened:
            yield lambda session_id, **options: TreeringSession(session_id, opened, **options)
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
def test_a_limit_returns_the_last_items_in_order(make_session, limit, expected):
    async def main():
        session = make_session("s")
        await session.add_items([say(str(number)) for number in range(5)])
        found = texts(await session.get_items(limit))
        assert found == [str(number) for number in range(5 - expected, 5)]

    asyncio.run(main())


def test_the_sessions_settings_are_the_default_limit(make_session):
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


def test_a_cleared_session_is_empty_and_can_be_continued(make_session):
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


def test_values_that_cannot_be_stored_are_refused_and_leave_nothing(make_session):
    async def main():
        session = make_session("s")
        with pytest.raises((TypeError, Unencodable)):
            await session.add_items([say("a"), {"role": "user", "content": object()}])
        assert await session.get_items() == []

    asyncio.run(main())


def test_a_real_run_remembers_the_conversation(make_session):
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


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def test_a_setting_that_the_sdk_does_not_have_is_refused(store):
    for wrong in ({"limitt": 1}, {"limit": "many"}, 5):
        with pytest.raises(InvalidInput, match="session_settings"):
            TreeringSession("s", store, session_settings=wrong)


SUMMARY = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}


def compacting(session, requests):
    """OpenAI's own compaction session on ours, with a client whose answers are made here."""

    def answer(request):
        requests.append(json.loads(request.content))
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        usage["input_tokens_details"] = {"cached_tokens": 0, "cache_write_tokens": 0}
        usage["output_tokens_details"] = {"reasoning_tokens": 0}
        made = {"id": "resp_1", "object": "response.compaction", "created_at": 1, "output": [SUMMARY]}
        return httpx.Response(200, json={**made, "usage": usage})

    transport = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    client = AsyncOpenAI(api_key="test", http_client=transport)
    return OpenAIResponsesCompactionSession(
        session.session_id, session, client=client, compaction_mode="input"
    )


def test_openais_compaction_is_one_checkpoint(store):
    async def main():
        session = TreeringSession("s", store)
        requests = []
        wrapped = compacting(session, requests)
        await wrapped.add_items([say("a"), say("b"), say("c")])
        await wrapped.run_compaction({"force": True})
        assert [len(each["input"]) for each in requests] == [3]
        assert [item["type"] for item in await session.get_items()] == ["compaction"]
        await wrapped.add_items([say("d")])
        assert len(await TreeringSession("s", store).get_items()) == 2

    asyncio.run(main())
    # Nothing was removed, and nobody ever saw the conversation empty.
    thread = store.thread("s")
    assert texts(thread.load().messages) == ["a", "b", "c", "d"]
    assert [len(each.compact_view().messages) for each in thread.history()] == [2, 1, 3]
    (made,) = thread.load().compactions
    assert (made.since, made.upto, made.source) == (0, 3, "openai-agents")
    thread.uncompact()
    assert texts(asyncio.run(TreeringSession("s", store).get_items())) == ["a", "b", "c", "d"]


def test_the_oldest_items_go_with_a_compaction_as_far_as_they_have_expired(store):
    async def main():
        session = TreeringSession("s", store)
        await session.add_items([say(each) for each in ("old", "old", "kept", "old", "a", "b")])
        snapshot = await session._get_compaction_snapshot(
            2, prune_prefix=lambda item: texts([item]) == ["old"]
        )
        assert texts(snapshot.items) == ["a", "b"]
        assert await snapshot.replace_suffix(1, [say("summary")])
        assert texts(await session.get_items()) == ["kept", "old", "a", "summary"]

    asyncio.run(main())


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_runs_compact_a_session_also_below_encryption(store, is_encrypted):
    """The SDK compacts after a run, unasked; encrypted sessions ask more of the one below."""

    async def main():
        requests = []
        session = compacting(TreeringSession("s", store), requests)
        wrapped = EncryptedSession("s", session, "a secret key") if is_encrypted else session
        session.should_trigger_compaction = lambda _: True
        model = ScriptedModel([[assistant_message("one")], [assistant_message("two")]])
        for prompt in ("first", "second"):
            await Runner.run(Agent(name="a", model=model), prompt, session=wrapped)
        assert requests
        assert any(item.get("type") == "compaction" for item in await wrapped.get_items())

    asyncio.run(main())


def test_a_subclass_that_changes_items_is_compacted_through_its_own_methods(store):
    class Shouting(TreeringSession):
        async def add_items(self, items):
            await super().add_items([{**item, "shouted": True} for item in items])

    async def main():
        session = Shouting("s", store)
        assert await session._get_compaction_snapshot(9) is None
        wrapped = compacting(session, [])
        await wrapped.add_items([say("a"), say("b")])
        await wrapped.run_compaction({"force": True})
        assert [item["shouted"] for item in await session.get_items()] == [True]

    asyncio.run(main())


def test_a_compaction_of_the_newest_items_keeps_the_older_ones(store):
    async def main():
        session = TreeringSession("s", store)
        await session.add_items([say(each) for each in "abcd"])
        snapshot = await session._get_compaction_snapshot(3)
        assert (texts(snapshot.items), snapshot.complete) == (["b", "c", "d"], False)
        assert await snapshot.replace_suffix(1, [say("summary")])
        assert texts(await session.get_items()) == ["a", "b", "summary"]
        # A second one was read before that, and must not undo it.
        assert not await snapshot.replace_suffix(1, [say("late")])
        assert texts(await session.get_items()) == ["a", "b", "summary"]
        assert (await session._get_compaction_snapshot(9)).complete

    asyncio.run(main())
    assert texts(store.thread("s").load().messages) == ["a", "b", "c", "d"]


def test_a_session_reads_and_shortens_what_a_compaction_left(store):
    async def main():
        session = TreeringSession("s", store)
        await session.add_items([say(each) for each in "abcd"])
        assert await session._atomic_replace_items([say("x"), say("y")])
        await session.add_items([say("e")])
        assert texts(await session.get_items(2)) == ["y", "e"]
        popped = [await session.pop_item() for _ in range(4)]
        assert texts(popped[:3]) == ["e", "y", "x"]
        assert (popped[3], await session.get_items()) == (None, [])
        await session.add_items([say("f")])
        snapshot = await session._get_compaction_snapshot(9)
        assert await snapshot.replace_suffix(0, [])
        assert await session.get_items() == []
        await session.clear_session()
        await session.add_items([say("g")])
        assert texts(await session.get_items()) == ["g"]

    asyncio.run(main())
    thread = store.thread("s")
    longest = max(thread.history(), key=lambda each: each.message_count)
    assert texts(longest.messages) == ["a", "b", "c", "d", "f"]
    assert thread.load().compactions == []


def test_a_second_compaction_keeps_what_the_first_one_kept(store):
    async def main():
        session = TreeringSession("s", store)
        await session.add_items([say(each) for each in "abcd"])
        first = await session._get_compaction_snapshot(3)
        await first.replace_suffix(1, [say("cd")])
        await session.add_items([say("e"), say("f")])
        second = await session._get_compaction_snapshot(3)
        assert texts(second.items) == ["cd", "e", "f"]
        assert await second.replace_suffix(1, [say("ef")])
        assert texts(await session.get_items()) == ["a", "b", "cd", "ef"]

    asyncio.run(main())
    loaded = store.thread("s").load()
    assert texts(loaded.messages) == list("abcdef")
    assert [(each.keeps, each.since, each.upto) for each in loaded.compactions] == [(2, 0, 4), (2, 4, 6)]
    assert texts(store.thread("s").load(view="compact").messages) == ["a", "b", "cd", "ef"]
