"""Ids that are not text are refused with an error that names the id; any text is a distinct id."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from pydantic_ai.conversation_store import ConversationRecord
from pydantic_ai.messages import ModelRequest, UserPromptPart

import treering
from treering.adapters.adk import TreeringArtifactService, TreeringMemoryService, TreeringSessionService
from treering.adapters.claude.session_store import TreeringSessionStore
from treering.adapters.langgraph import TreeringSaver
from treering.adapters.openai_agents import TreeringSession
from treering.adapters.pydantic_ai.conversations import TreeringConversationStore
from treering.errors import InvalidInput

WRONG = [None, 7, True, b"bytes", ["list"], {"a": "dict"}, object()]
ODD = [
    "",
    " ",
    "x" * 5000,
    "half \ud800 a character",
    "a\x00b",
    "a/b",
    "../..",
    "~",
    "%2F",
    "né 名 \U0001f600",
    "\u202e",
]
SAID = [ModelRequest([UserPromptPart("hi")])]
ENTRY = [{"type": "user", "uuid": "1"}]


def claude(**key):
    return {"project_key": "p", "session_id": "s", **key}


ADK = {
    "create app_name": lambda it, odd: it.create_session(app_name=odd, user_id="u"),
    "create user_id": lambda it, odd: it.create_session(app_name="a", user_id=odd),
    "get app_name": lambda it, odd: it.get_session(app_name=odd, user_id="u", session_id="s"),
    "get user_id": lambda it, odd: it.get_session(app_name="a", user_id=odd, session_id="s"),
    "get session_id": lambda it, odd: it.get_session(app_name="a", user_id="u", session_id=odd),
    "list app_name": lambda it, odd: it.list_sessions(app_name=odd),
    "delete session_id": lambda it, odd: it.delete_session(app_name="a", user_id="u", session_id=odd),
    "state user_id": lambda it, odd: it.get_user_state(app_name="a", user_id=odd),
}
ADK_OPTIONAL = {
    "create session_id": lambda it, odd: it.create_session(app_name="a", user_id="u", session_id=odd),
    "list user_id": lambda it, odd: it.list_sessions(app_name="a", user_id=odd),
}
ARTIFACTS = {
    "list app_name": lambda it, odd: it.list_versions(
        app_name=odd, user_id="u", session_id="s", filename="f"
    ),
    "load user_id": lambda it, odd: it.load_artifact(app_name="a", user_id=odd, session_id="s", filename="f"),
    "load filename": lambda it, odd: it.load_artifact(
        app_name="a", user_id="u", session_id="s", filename=odd
    ),
}
MEMORY = {
    "search app_name": lambda it, odd: it.search_memory(app_name=odd, user_id="u", query="q"),
    "search user_id": lambda it, odd: it.search_memory(app_name="a", user_id=odd, query="q"),
}
PYDANTIC_AI = {
    "load conversation": lambda it, odd: it.load(odd),
    "read_record conversation": lambda it, odd: it.read_record(odd),
    "extend conversation": lambda it, odd: it.extend(odd, SAID, expected_revision=None),
    "delete conversation": lambda it, odd: it.delete_record(odd, expected_revision="r"),
    "write conversation": lambda it, odd: it.write_record(
        ConversationRecord(conversation_id=odd, head_id=None), expected_revision=None
    ),
    "read_entry entry": lambda it, odd: it.read_entry(odd),
}
PYDANTIC_AI_OPTIONAL = {"read_history entry": lambda it, odd: it.read_history(odd)}
CLAUDE = {
    "append session id": lambda it, odd: it.append(claude(session_id=odd), ENTRY),
    "append project key": lambda it, odd: it.append(claude(project_key=odd), ENTRY),
    "load session id": lambda it, odd: it.load(claude(session_id=odd)),
    "delete session id": lambda it, odd: it.delete(claude(session_id=odd)),
    "list project key": lambda it, odd: it.list_sessions(odd),
    "summaries project key": lambda it, odd: it.list_session_summaries(odd),
    "subkeys session id": lambda it, odd: it.list_subkeys(claude(session_id=odd)),
}
CLAUDE_OPTIONAL = {"load subpath": lambda it, odd: it.load(claude(subpath=odd))}
REQUIRED = [
    *((TreeringSessionService, *each) for each in ADK.items()),
    *((TreeringArtifactService, *each) for each in ARTIFACTS.items()),
    *((TreeringMemoryService, *each) for each in MEMORY.items()),
    *((TreeringConversationStore, *each) for each in PYDANTIC_AI.items()),
    *((TreeringSessionStore, *each) for each in CLAUDE.items()),
]
OPTIONAL = [
    *((TreeringSessionService, *each) for each in ADK_OPTIONAL.items()),
    *((TreeringConversationStore, *each) for each in PYDANTIC_AI_OPTIONAL.items()),
    *((TreeringSessionStore, *each) for each in CLAUDE_OPTIONAL.items()),
]


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def run(answer):
    async def awaited():
        return await answer

    return asyncio.run(awaited()) if inspect.isawaitable(answer) else answer


@pytest.mark.parametrize("adapter, name, call", REQUIRED, ids=lambda each: getattr(each, "__name__", each))
def test_an_id_that_is_no_text_is_refused_and_named(store, adapter, name, call):
    for wrong in WRONG:
        with pytest.raises(InvalidInput) as refused:
            run(call(adapter(store), wrong))
        said = str(refused.value)
        assert name.partition(" ")[2] in said
        assert said.endswith(f"is of type {type(wrong).__name__}; pass a str")
    assert list(store.threads(namespace=None)) == []


@pytest.mark.parametrize("adapter, name, call", OPTIONAL, ids=lambda each: getattr(each, "__name__", each))
def test_an_id_may_be_left_out_where_that_means_something(store, adapter, name, call):
    run(call(adapter(store), None))
    for wrong in WRONG[1:]:
        with pytest.raises(InvalidInput, match=f"{name.partition(' ')[2]}.* is of type"):
            run(call(adapter(store), wrong))


@pytest.mark.parametrize(
    "make",
    [
        TreeringSessionService,
        TreeringArtifactService,
        TreeringMemoryService,
        TreeringConversationStore,
        TreeringSaver,
    ],
)
def test_a_namespace_that_is_no_text_opens_nothing(make, tmp_path):
    for wrong in WRONG:
        with pytest.raises(InvalidInput, match=r"^namespace is of type \w+; pass a str, or leave it out$"):
            make(tmp_path / "store", namespace=wrong)
    assert not (tmp_path / "store").exists()


def test_any_text_is_an_id_of_its_own(store):
    async def talk():
        adk, conversations = (
            TreeringSessionService(store),
            TreeringConversationStore(store, namespace="conversations"),
        )
        sessions = TreeringSessionStore(store)
        for number, odd in enumerate(ODD):
            await adk.create_session(app_name=odd, user_id=odd, session_id=f"{odd}s", state={"n": number})
            said = [ModelRequest([UserPromptPart(f"{number}")])]
            await conversations.extend(odd, said, expected_revision=None)
            await sessions.append(claude(session_id=odd), [{"type": "user", "uuid": "1", "n": number}])
        for number, odd in enumerate(ODD):
            found = await adk.get_session(app_name=odd, user_id=odd, session_id=f"{odd}s")
            assert found.state == {"n": number}
            assert (await conversations.load(odd)).messages[0].parts[0].content == f"{number}"
            assert (await sessions.load(claude(session_id=odd)))[0]["n"] == number

    asyncio.run(talk())
    assert store.verify().ok


def test_invalid_keys_entries_and_items_are_refused(store):
    for wrong in WRONG:
        with pytest.raises(InvalidInput, match=r"session key is of type|Claude project key"):
            run(TreeringSessionStore(store).load(wrong))
    for wrong in (7, b"bytes", ["text"], [None]):
        with pytest.raises(
            InvalidInput, match=r"entry of a Claude session is of type .* pass a list of dicts"
        ):
            run(TreeringSessionStore(store).append(claude(), wrong))
        with pytest.raises(InvalidInput, match=r"item of a session is of type .* pass a list of dicts"):
            run(TreeringSession("s", store).add_items(wrong))
    for wrong in (7, "text", ["list"]):
        with pytest.raises(InvalidInput, match=r"state of an ADK session is of type .* pass a dict"):
            run(TreeringSessionService(store).create_session(app_name="a", user_id="u", state=wrong))
    for wrong in ({}, {"configurable": {}}, {"configurable": None}, None):
        with pytest.raises(InvalidInput, match="the config names no thread; pass config="):
            TreeringSaver(store).get_tuple(wrong)
