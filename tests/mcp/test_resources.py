"""Resources and prompts, read through the client of the SDK."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from mcp.client import Client
from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import PromptReference, ResourceTemplateReference, ResourceUpdatedNotification

from treering.mcp.server import TreeringServer

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
    assert [each["role"] for each in thread["messages"]] == ["user", "assistant", "user"]
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


def completed(talk, ref, name, value, **arguments):
    async def conversation(client):
        argument = {"name": name, "value": value}
        return (await client.complete(ref, argument, context_arguments=arguments or None)).completion

    return talk(conversation)


def test_ids_and_namespaces_are_completed(talk, filled):
    filled.memory.save("alice/food", "No peanuts.")
    for number in range(150):
        filled.memory.save(f"many/{number:03}", "x")
    memory = ResourceTemplateReference(uri="memory://{+id}{?namespace}")
    thread = ResourceTemplateReference(uri="thread://{+id}{?namespace}")
    assert completed(talk, memory, "id", "alice/").values == ["alice/food", "alice/tone"]
    assert completed(talk, memory, "namespace", "user").values == ["user/bob"]
    assert completed(talk, memory, "id", "", namespace="user/bob").values == ["food"]
    many = completed(talk, memory, "id", "many")
    assert (len(many.values), many.values[0], many.has_more) == (100, "many/000", True)
    filled.thread("other", "user/bob").append({"role": "user", "content": "Hi"})
    assert completed(talk, thread, "id", "sup").values == ["support/alice"]
    assert completed(talk, thread, "namespace", "u").values == ["user/bob"]
    head = filled.thread("support/alice").head.id
    checkpoint = ResourceTemplateReference(uri="checkpoint://{id}")
    assert completed(talk, checkpoint, "id", head[:-1]).values == [head]
    assert len(completed(talk, checkpoint, "id", "ckpt_").values) == 4
    resume = PromptReference(name="resume_thread")
    assert completed(talk, resume, "thread", "sup").values == ["support/alice"]
    assert completed(talk, PromptReference(name="recall"), "topic", "x").values == []


def change(store):
    """Changes that another process could have made as well."""
    store.thread("support/alice").append({"role": "user", "content": "Still nothing."})
    store.memory.save("alice/tone", "Prefers long replies.")
    store.memory.save("of/nobody", "x")
    store.run(agent="a").end()


def test_a_client_hears_of_changes_of_what_it_listens_to(talk, filled):
    uris = ["thread://support/alice", "memory://alice%2Ftone", "thread://other?namespace=user%2Fbob"]

    async def conversation(client):
        heard = set()
        listening = client.listen(resource_subscriptions=uris, resources_list_changed=True)
        async with asyncio.timeout(60), listening as events:
            await asyncio.to_thread(change, filled)
            await asyncio.to_thread(
                filled.thread("other", "user/bob").append, {"role": "user", "content": "Hi"}
            )
            async for event in events:
                heard.add(event)
                if ResourceUpdated(uris[2]) in heard and len(heard) == 4:
                    break
        assert heard == {*map(ResourceUpdated, uris), ResourcesListChanged()}

    talk(conversation)


def test_a_client_hears_that_a_resource_is_gone(talk, filled):
    async def conversation(client):
        async with asyncio.timeout(60), client.listen(resources_list_changed=True) as events:
            await asyncio.to_thread(filled.thread("support/alice").delete)
            async for event in events:
                assert event == ResourcesListChanged()
                break

    talk(conversation)


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
def test_a_client_of_an_older_protocol_subscribes_to_resources(filled):
    async def main():
        heard = asyncio.Queue()

        async def on_message(message):
            if isinstance(message, ResourceUpdatedNotification):
                await heard.put(message.params.uri)

        server = TreeringServer(filled)
        async with (
            asyncio.timeout(60),
            Client(server, mode="legacy", message_handler=on_message) as client,
        ):
            await client.subscribe_resource("thread://support/alice")
            await client.subscribe_resource("memory://alice/tone")
            await asyncio.to_thread(change, filled)
            assert {await heard.get(), await heard.get()} == {"thread://support/alice", "memory://alice/tone"}
            await client.unsubscribe_resource("thread://support/alice")
            await asyncio.to_thread(change, filled)
            filled.memory.save("alice/tone", "Something else.")
            assert await heard.get() == "memory://alice/tone"

    asyncio.run(main())


def test_nobody_follows_the_journal_when_nobody_listens(talk):
    async def conversation(client):
        async with asyncio.timeout(60), client.listen(resources_list_changed=True):
            assert "treering-mcp-changes" in {each.name for each in threading.enumerate()}

    talk(conversation)
    for each in threading.enumerate():
        if each.name == "treering-mcp-changes":
            each.join(60)
            assert not each.is_alive()


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
