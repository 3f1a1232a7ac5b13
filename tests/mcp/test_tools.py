"""The tools, called through the client of the SDK."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_types import CallToolResult

from treering.compat.memory import StaticEmbedder
from treering.errors import InvalidInput
from treering.mcp.replies import MIN_REPLY_BYTES, Replies
from treering.mcp.server import MAX_TOOLS

READING = {
    "memory_search",
    "memory_get",
    "history_search",
    "thread_list",
    "thread_read",
    "checkpoint_list",
}
CONFIGURATIONS = [
    # What the owner allows, the tools beside those that read, the actions of schedules and of approvals,
    # and the hints of both: whether they only read, and whether they destroy.
    ({"read_only": True}, set(), ["list"], ["list"], (True, True), (False, False)),
    (
        {"read_only": True, "allow_destructive": True},
        *(set(), ["list"], ["list"], (True, True), (False, False)),
    ),
    ({}, {"memory_save", "thread_fork"}, ["list", "create"], ["list"], (False, True), (False, False)),
    (
        {"allow_destructive": True},
        {"memory_save", "thread_fork", "memory_delete"},
        *(["list", "create", "cancel"], ["list", "answer"], (False, False), (True, True)),
    ),
]


async def tools_of(client):
    return (await client.list_tools()).tools


def names(tools):
    return {tool.name for tool in tools}


@pytest.mark.parametrize("allowed, more, schedules, approvals, reads, destroys", CONFIGURATIONS)
def test_at_most_twelve_tools_are_offered_and_none_that_is_not_allowed(
    talk, allowed, more, schedules, approvals, reads, destroys
):
    tools = {tool.name: tool for tool in talk(tools_of, **allowed)}
    assert set(tools) == READING | more | {"schedules", "approvals"}
    assert len(tools) <= MAX_TOOLS == 12
    both = tools["schedules"], tools["approvals"]
    actions = [tool.input_schema["properties"]["action"] for tool in both]
    assert [each.get("enum", [each.get("const")]) for each in actions] == [schedules, approvals]
    assert tuple(tool.annotations.read_only_hint for tool in both) == reads
    assert tuple(tool.annotations.destructive_hint is True for tool in both) == destroys
    assert ("task_id" in both[0].input_schema["properties"]) is ("cancel" in schedules)
    for name in READING | more:
        assert tools[name].annotations.read_only_hint is (name in READING)
        assert (tools[name].annotations.destructive_hint is True) is (name == "memory_delete")
    for tool in tools.values():
        assert len(tool.description) > 40
        assert tool.annotations.open_world_hint is False
        for argument in tool.input_schema["properties"].values():
            assert argument["description"]


def test_a_tool_that_is_not_offered_cannot_be_called(call, filled):
    assert "Unknown tool" in call("memory_delete", id="alice/tone")
    assert filled.memory.get("alice/tone") is not None
    task = call("schedules", action="create", prompt="p", type="interval", value="60")
    assert "validation error" in call("schedules", action="cancel", task_id=task["id"])
    assert "validation error" in call(
        "approvals", action="answer", approval_id="a", decision="approve", by="b"
    )
    assert [each["id"] for each in call("schedules")["tasks"]] == [task["id"]]


def test_memory_is_searched_listed_and_read(call):
    found = call("memory_search", text="how concise should I reply?")
    assert [hit["id"] for hit in found["documents"]] == ["alice/tone"]
    assert found["ranked"] is True
    elsewhere = call("memory_search", text="peanut", everywhere=True)["documents"]
    assert [(hit["id"], hit["namespace"]) for hit in elsewhere] == [("food", "user/bob")]
    nothing = call("memory_search", text="peanut")
    assert nothing["documents"] == []
    assert nothing["namespaces_with_memories"] == ["", "user/bob"]
    assert [each["id"] for each in call("memory_search", tags=["style"])["documents"]] == ["alice/tone"]
    whole = call("memory_get", id="alice/tone", history=True)
    assert (whole["content"], whole["version"]) == ("Prefers concise replies.", 1)
    assert [each["operation"] for each in whole["versions"]] == ["saved"]


def test_semantic_search_with_an_embedder(call):
    options = {"embedder": StaticEmbedder()}
    call("memory_save", options=options, id="pets", content="Carol has a small dog called Rex.")
    assert call("memory_search", text="puppy")["documents"] == []
    assert call("memory_search", options=options, text="puppy")["documents"][0]["id"] == "pets"


def test_a_query_that_cannot_be_ranked_is_reported(call):
    assert "no words" in call("memory_search", text="?!")["note"]


def test_saving_keeps_omitted_fields_and_records_provenance(call, filled):
    saved = call("memory_save", id="alice/tone", content="And no small talk.", append=True)
    assert (saved["version"], saved["tags"], saved["auto_load"]) == (2, ["style"], True)
    document = filled.memory.get("alice/tone")
    assert document.content == "Prefers concise replies.\nAnd no small talk."
    assert document.provenance.source == "mcp"
    assert call("memory_save", id="alice/tone", content="Short.", tags=[])["tags"] == []
    assert [version.version for version in filled.memory.history("alice/tone")] == [3, 2, 1]


def test_if_version_prevents_overwriting_a_newer_version(call, filled):
    filled.memory.save("alice/tone", "Someone else was here.")
    error = call("memory_save", id="alice/tone", content="Mine.", if_version=1)
    assert "RefMoved" in error
    assert "is at version 2" in error
    assert filled.memory.get("alice/tone").content == "Someone else was here."


def test_deleting_keeps_the_history(call, filled):
    assert call("memory_delete", options={"allow_destructive": True}, id="alice/tone")["deleted"]
    assert filled.memory.get("alice/tone") is None
    assert filled.memory.get("alice/tone", version=1).content == "Prefers concise replies."


def test_errors_name_the_problem_and_the_next_step(call):
    assert "find documents with memory_search" in call("memory_get", id="nobody")
    assert "did you mean 'support/alice'" in call("thread_read", thread="support/alise")
    assert "does not have five fields" in call(
        "schedules", action="create", prompt="p", type="cron", value="often"
    )
    assert "needs prompt, value" in call("schedules", action="create", type="cron")
    assert "validation error" in call("memory_search", text="x", limit=0)
    assert "offset is 99" in call("memory_get", id="alice/tone", offset=99)


def test_conversations_are_listed_and_read_at_earlier_checkpoints(call):
    (thread,) = call("thread_list")["threads"]
    assert (thread["id"], thread["step"]) == ("support/alice", 2)
    assert (thread["last_message"], thread["message_count"]) == ("user: Nothing came.", 3)
    now = call("thread_read", thread="support/alice", last=2, state=True)
    assert now["messages"] == [
        {"index": 1, "role": "assistant", "text": "It was sent on Monday."},
        {"index": 2, "role": "user", "text": "Nothing came."},
    ]
    (saved,) = call("thread_read", thread="support/alice", last=1, raw=True)["messages"]
    assert saved == {"index": 2, "message": {"role": "user", "content": "Nothing came."}}
    assert now["first_index"] == 1
    assert now["state"] == {"todos": ["check the bank"]}
    older = call("thread_read", thread="support/alice", before=now["first_index"])
    assert [each["index"] for each in older["messages"]] == [0]
    then = call("thread_read", thread="support/alice", at="~1")
    assert (then["message_count"], then["note"]) == (2, "first answer")


def test_history_search_returns_shared_messages_of_forks_once(call, filled):
    filled.thread("support/alice").fork("support/alice-2")
    found = call("history_search", text="was the refund sent on a Monday?")
    assert found["complete"] is True
    assert [hit["index"] for hit in found["hits"]] == [1, 0]
    assert found["hits"][0]["text"] == "It was sent on Monday."
    assert call("history_search", text="elephants")["hits"] == []
    assert "no word" in call("history_search", text="...")
    assert "thread 'x' not found" in call("history_search", text="refund", thread="x")


def test_history_search_includes_recorded_runs(call, filled):
    with filled.run(agent="planner") as run:
        run.message("assistant", "The walnut harvest is in October.")
    filled.flush()
    (hit,) = call("history_search", text="walnut harvests")["recorded"]
    assert "walnut harvest" in json.dumps(hit)
    assert run.id in json.dumps(hit)
    assert "recorded" not in call("history_search", text="walnut", thread="support/alice")


def test_a_fork_starts_at_an_earlier_checkpoint(call, filled):
    first = call("checkpoint_list", thread="support/alice")["checkpoints"][-1]
    assert first["step"] == 0
    forked = call("thread_fork", thread="support/alice", new_thread="bolder", at=first["id"])
    assert forked["from"]["message_count"] == 1
    assert filled.thread("bolder").head.message_count == 1
    assert filled.thread("support/alice").head.message_count == 3
    assert "an id of its own" in call("thread_fork", thread="support/alice", new_thread="support/alice")


def test_tasks_are_created_listed_and_cancelled(call):
    made = call(
        "schedules", action="create", prompt="Forecast?", type="cron", value="0 8 * * *", tz="Europe/Berlin"
    )
    assert all("T08:00:00" in time for time in made["next_times"])
    often = call("schedules", action="create", prompt="Look", type="interval", value="3600")
    assert [task["id"] for task in call("schedules")["tasks"]] == [made["id"], often["id"]]
    options = {"allow_destructive": True}
    assert call("schedules", options=options, action="cancel", task_id=made["id"])["status"] == "cancelled"
    assert [task["id"] for task in call("schedules")["tasks"]] == [often["id"]]


def size(result: CallToolResult) -> int:
    return len(result.model_dump_json(by_alias=True, exclude_none=True).encode())


def test_replies_stay_within_the_limit_and_pages_lose_nothing(talk, filled):
    text = "".join(f'{number} "quoted" \\ ü \n' for number in range(2_000))
    filled.memory.save("long", text)
    for number in range(300):
        filled.memory.save(f"many/{number:03}", "words " * 200)
    thread = filled.thread("long")
    thread.append(*({"role": "user", "content": f"{number}: " + "refund " * 300} for number in range(100)))

    async def conversation(client):
        async def call(name, **arguments):
            result = await client.call_tool(name, arguments)
            assert not result.is_error, result.content[0].text
            assert size(result) <= 8_000
            assert json.loads(result.content[0].text) == result.structured_content
            return result.structured_content

        pages, offset = [], 0
        while offset is not None:
            page = await call("memory_get", id="long", offset=offset)
            pages.append(page["content"])
            offset = page.get("next_offset")
        assert len(pages) > 3
        assert "".join(pages) == text
        assert "did not fit" in (await call("memory_search", prefix="many/", limit=100))["cut"]
        assert "did not fit" in (await call("memory_search", text="words", limit=100))["cut"]
        await call("history_search", text="refund", limit=50)
        indexes, before = [], None
        while before != 0:
            page = await call("thread_read", thread="long", last=100, before=before)
            indexes = [each["index"] for each in page["messages"]] + indexes
            before = page["first_index"]
        assert indexes == list(range(100))
        for uri in ("memory://long", "thread://long", f"checkpoint://{thread.head.id}"):
            (content,) = (await client.read_resource(uri)).contents
            assert len(content.text.encode()) <= 8_000

    talk(conversation, reply_bytes=8_000)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3000),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=50), inner, max_size=5),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=50)
@given(st.lists(VALUES, max_size=8), VALUES)
def test_a_reply_stays_within_the_limit_whatever_is_stored(items, state):
    replies = Replies(MIN_REPLY_BYTES)
    listed = replies.listing("items", ({"value": item} for item in items), more="ask for fewer")
    assert size(listed) <= MIN_REPLY_BYTES
    assert size(replies.whole({"state": state})) <= MIN_REPLY_BYTES
    shown = listed.structured_content["items"]
    assert len(shown) == len(items) or listed.structured_content["cut"] == "ask for fewer"
    assert bool(shown) == bool(items)


def test_a_reply_limit_that_is_too_low_is_rejected():
    with pytest.raises(InvalidInput, match="2000 or more"):
        Replies(100)


def test_a_person_answers_through_an_assistant(filled, call):
    filled.thread("t").interrupt({"tool_call": {"name": "pay", "arguments": {"amount": 5}}})
    (asked,) = call("approvals")["approvals"]
    assert asked["calls"] == [{"tool": "pay", "arguments": {"amount": 5}}]
    options = {"allow_destructive": True}
    answer = {"approval_id": asked["id"], "decision": "edit", "by": "bob", "arguments": {"amount": 3}}
    assert call("approvals", options=options, action="answer", **answer)["decided_by"] == ["bob"]
    assert filled.thread("t").load().metadata["resumed"]["payload"] == {"amount": 3}
    assert call("approvals")["approvals"] == []
