"""Resources and prompts, read through the client of the SDK."""

from __future__ import annotations

import json

import pytest
from mcp.shared.exceptions import MCPError

ODD = "Ümläut/a b?c#d%2Fe/../f"


def read(talk, uri):
    async def conversation(client):
        (content,) = (await client.read_resource(uri)).contents
        return content

    return talk(conversation)


def test_templates_and_resources_are_listed(talk, filled):
    filled.memory.save(ODD, "odd")
    filled.thread("other", "user/bob").append({"role": "user", "content": "Hi"})

    async def conversation(client):
        templates = (await client.list_resource_templates()).resource_templates
        assert {each.uri_template.partition(":")[0] for each in templates} == {
            "memory",
            "thread",
            "checkpoint",
        }
        assert all(each.description for each in templates)
        listed = (await client.list_resources()).resources
        assert {each.name for each in listed} == {"alice/tone", ODD, "support/alice", "other"}
        for each in listed:  # every listed resource can be read
            (content,) = (await client.read_resource(each.uri)).contents
            assert content.text
            assert content.mime_type == each.mime_type

    talk(conversation)


def test_documents_conversations_and_checkpoints_are_read_by_uri(talk, filled):
    assert read(talk, "memory://alice/tone").text == "Prefers concise replies."
    assert read(talk, "memory://food?namespace=user%2Fbob").text == "Bob is allergic to peanuts."
    thread = json.loads(read(talk, "thread://support/alice").text)
    assert [each["message"]["role"] for each in thread["messages"]] == ["user", "assistant", "user"]
    head = filled.thread("support/alice").head
    checkpoint = json.loads(read(talk, f"checkpoint://{head.id}").text)
    assert checkpoint["state"] == {"todos": ["check the bank"]}
    before = filled.thread("support/alice").at(0)
    diff = json.loads(read(talk, f"checkpoint://{before.id}/diff/{head.id}").text)
    assert [each["message"]["content"] for each in diff["added"]] == [
        "It was sent on Monday.",
        "Nothing came.",
    ]


@pytest.mark.parametrize(
    "uri, what",
    [
        ("memory://nobody", "no memory 'nobody'"),
        ("thread://nobody", "thread 'nobody' not found"),
        ("checkpoint://ckpt_01m7hyk9gs", "not found"),
        ("checkpoint://x", "too short"),
        ("file:///etc/passwd", "Unknown resource"),
    ],
)
def test_an_unknown_resource_is_an_error(talk, uri, what):
    async def conversation(client):
        with pytest.raises(MCPError, match=what):
            await client.read_resource(uri)

    talk(conversation)


def test_every_prompt_is_described_and_works(talk):
    async def conversation(client):
        prompts = (await client.list_prompts()).prompts
        assert {each.name for each in prompts} == {"recall", "remember", "load_context", "resume_thread"}
        for each in prompts:
            assert each.description
            assert all(argument.description for argument in each.arguments)
            given = {argument.name: "peanuts" for argument in each.arguments if argument.required}
            (message,) = (await client.get_prompt(each.name, given)).messages
            assert all(value in message.content.text for value in given.values())
        (loaded,) = (await client.get_prompt("load_context", {})).messages
        assert "Prefers concise replies." in loaded.content.text

    talk(conversation)
