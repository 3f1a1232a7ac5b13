"""A store with content, and clients of its server."""

from __future__ import annotations

import asyncio
import sys

import pytest
from mcp.client import Client

import treering
from treering.mcp.server import TreeringServer

COMMAND = [sys.executable, "-m", "treering", "mcp"]


def fill(store):
    store.memory.save("alice/tone", "Prefers concise replies.", tags={"style"}, auto_load=True)
    store.memory.in_namespace("user/bob").save("food", "Bob is allergic to peanuts.", tags={"health"})
    thread = store.thread("support/alice")
    thread.append({"role": "user", "content": "Where is my refund?"})
    thread.append({"role": "assistant", "content": "It was sent on Monday."}, note="first answer")
    thread.append({"role": "user", "content": "Nothing came."}, state={"todos": ["check the bank"]})
    return store


@pytest.fixture
def filled():
    with treering.open("memory:") as opened:
        yield fill(opened)


@pytest.fixture
def talk(filled):
    """Run an async function with a client of a server over the store."""

    def run(conversation, **options):
        async def main():
            async with Client(TreeringServer(filled, **options)) as client:
                return await conversation(client)

        return asyncio.run(main())

    return run


@pytest.fixture
def call(talk):
    """Call one tool; return its data, or its error as text."""

    def run(name, *, options=None, **arguments):
        result = talk(lambda client: client.call_tool(name, arguments), **(options or {}))
        return result.content[0].text if result.is_error else result.structured_content

    return run
