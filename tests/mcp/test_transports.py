"""``treering mcp`` in its own process, over stdio and HTTP, with the SDK client and the npm inspector."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.subscriptions import ResourceUpdated
from mcp.shared._httpx_utils import create_mcp_http_client

import treering
from tests.mcp import inspector
from tests.mcp.conftest import COMMAND, fill
from tests.mcp.test_tools import CONFIGURATIONS, READING

KEY = "a-key-that-is-long-enough"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("TREERING_")}


@pytest.fixture
def folder(tmp_path):
    with treering.open(tmp_path / "store") as store:
        fill(store)
    return tmp_path / "store"


async def conversation(client):
    """Search, save and read."""
    tools = {tool.name for tool in (await client.list_tools()).tools}
    assert "memory_save" in tools
    assert "memory_delete" not in tools
    found = await client.call_tool("memory_search", {"text": "how concise?"})
    assert found.structured_content["documents"][0]["id"] == "alice/tone"
    await client.call_tool("memory_save", {"id": "made", "content": "by a client"})
    (content,) = (await client.read_resource("memory://made")).contents
    assert content.text == "by a client"
    error = await client.call_tool("memory_get", {"id": "nobody"})
    assert error.is_error


def test_a_client_hears_of_what_another_process_commits(folder):
    parameters = StdioServerParameters(
        command=sys.executable, args=[*COMMAND[1:], "--store", str(folder)], env=CLEAN
    )

    async def main():
        async with (
            asyncio.timeout(100),
            Client(stdio_client(parameters)) as client,
            client.listen(resource_subscriptions=["memory://alice/tone"]) as events,
        ):
            with treering.open(folder) as store:
                store.memory.save("alice/tone", "Prefers long replies.")
            async for event in events:
                assert event == ResourceUpdated("memory://alice/tone")
                break
            (content,) = (await client.read_resource("memory://alice/tone")).contents
            assert content.text == "Prefers long replies."

    asyncio.run(main())


def test_a_client_over_stdio(folder):
    parameters = StdioServerParameters(
        command=sys.executable, args=[*COMMAND[1:], "--store", str(folder)], env=CLEAN
    )

    async def main():
        async with Client(stdio_client(parameters)) as client:
            await conversation(client)

    asyncio.run(main())
    with treering.open(folder) as store:
        assert store.memory.get("made").content == "by a client"


def test_the_server_exits_at_end_of_input_and_prints_nothing_else(folder):
    done = subprocess.run(
        [*COMMAND, "--store", str(folder)], input=b"", capture_output=True, timeout=60, check=False, env=CLEAN
    )
    assert (done.returncode, done.stdout) == (0, b"")


@contextmanager
def serving(folder, *options):
    server = subprocess.Popen(
        [*COMMAND, "--store", str(folder), "--http", "127.0.0.1:0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env=CLEAN,
    )
    try:
        url = re.search(r"http://\S+/mcp", server.stderr.readline()).group()
        yield url
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0 or server.returncode == -signal.SIGTERM
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def test_a_client_over_http(folder):
    async def main(url):
        async with Client(url) as client:
            await conversation(client)

    with serving(folder) as url:
        asyncio.run(main(url))


def test_only_the_right_key_is_accepted(folder):
    async def main(url):
        with_key = create_mcp_http_client(headers={"Authorization": f"Bearer {KEY}"})
        async with with_key, Client(streamable_http_client(url, http_client=with_key)) as client:
            await conversation(client)

    with serving(folder, "--api-key", KEY) as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}):
            reply = httpx.post(url, json={}, headers=headers)
            assert reply.status_code == 401
            assert reply.headers["WWW-Authenticate"] == "Bearer"
        asyncio.run(main(url))


def test_a_request_from_another_site_is_refused(folder):
    with serving(folder) as url:
        reply = httpx.post(url, json={}, headers={"Host": "evil.example", "Origin": "http://evil.example"})
        assert reply.status_code in (403, 421)


@pytest.mark.parametrize(
    "options, what",
    [
        (["--http", "0.0.0.0:0"], "no key is set"),
        (["--http", "0.0.0.0:0", "--api-key", "short"], "too weak"),
        (["--http", "nowhere"], "HOST:PORT"),
        (["--http", "127.0.0.1:99999"], "HOST:PORT"),
        (["--read-only", "--allow-destructive"], "mutually exclusive"),
        (["--reply-bytes", "1"], "2000 or more"),
    ],
)
def test_unsafe_or_contradictory_options_are_rejected(folder, options, what):
    done = subprocess.run(
        [*COMMAND, "--store", str(folder), *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=CLEAN,
    )
    assert done.returncode == 2
    assert what in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)  # the first time, npm fetches it
def test_the_inspector_over_stdio_and_http(folder, npm):
    program = inspector.program(npm(inspector.PACKAGE, inspector.VERSION))
    stdio = [*COMMAND, "--store", str(folder), "--allow-destructive"]
    listed = inspector.inspect(program, stdio, "--method", "tools/list", "--strict")
    assert {each["name"] for each in listed["tools"]} == READING | CONFIGURATIONS[-1][1] | {
        "schedules",
        "approvals",
    }
    call = ("--method", "tools/call", "--tool-name", "memory_search", "--tool-arg", "text=concise")
    assert inspector.inspect(program, stdio, *call)["structuredContent"]["documents"][0]["id"] == "alice/tone"
    with serving(folder) as url:
        assert (
            inspector.inspect(program, [url], *call)["structuredContent"]["documents"][0]["id"]
            == "alice/tone"
        )
        read = inspector.inspect(program, [url], "--method", "resources/read", "--uri", "memory://alice/tone")
        assert read["contents"][0]["text"] == "Prefers concise replies."
        prompts = inspector.inspect(program, [url], "--method", "prompts/list")["prompts"]
        assert all(each["description"] for each in prompts)


HOSTILE = {
    "deep": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}",
    "huge": b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"v":"' + b"x" * 30_000_000 + b'"}}',
    "many values": b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"v":[' + b"{}," * 3_000_000 + b"1]}}",
    "no JSON": b"\xff\xfe",
    "no message": b"[1, {}]",
}
ODD: list[object] = [7, 1e308, None, [], {"a": {"b": []}}, "\0", "x" * 100_000]


def test_a_hostile_client_over_http_learns_nothing_and_breaks_nothing(folder):
    """Wrong types, ids of another tenant, and bodies that are too deep or too large."""
    with treering.open(folder, namespace="other") as other:
        other.memory.save("secret", "of another tenant")
        other.thread("hidden").append({"role": "user", "content": "of another tenant"})

    async def main(url) -> str:
        said = ""
        async with Client(url) as client:
            for tool in (await client.list_tools()).tools:
                names = list(tool.input_schema["properties"])
                for value in ODD:
                    said += str(await client.call_tool(tool.name, dict.fromkeys(names, value)))
                for value in ("secret", "hidden", "other/secret", "../other/hidden", "tenant"):
                    said += str(await client.call_tool(tool.name, dict.fromkeys(names, value)))
                    said += str(await client.call_tool(tool.name, dict.fromkeys(names[:1], value)))
            await conversation(client)
        return said

    with serving(folder) as url:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        for body in HOSTILE.values():
            assert httpx.post(url, content=body, headers=headers, timeout=60).status_code in {400, 413}
        said = asyncio.run(main(url))
    assert "of another tenant" not in said
    assert "Traceback" not in said
