"""Any MCP server behind the proxy: each call happens once, also when the proxy is killed in the middle."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

import treering
from treering.errors import InvalidInput
from treering.mcp.proxy import EFFECT_META, upstream_of

ROOT = Path(__file__).resolve().parents[2]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("TREERING_")}


class Bank:
    """A bank behind a proxy; each `talk` is a new client with a proxy of its own."""

    def __init__(self, folder):
        self.store = folder / "store"
        self.ledger = folder / "ledger.txt"

    def talk(self, conversation, *options):
        behind = [sys.executable, "-m", "tests.mcp.bank_server", str(self.ledger)]
        arguments = ["-m", "treering", "proxy", "mcp", "--store", str(self.store), *options, "--", *behind]
        parameters = StdioServerParameters(
            command=sys.executable, args=arguments, env=CLEAN | {"PYTHONPATH": str(ROOT)}
        )

        async def main():
            async with Client(parameters) as client:
                return await conversation(client)

        return asyncio.run(main())

    def call(self, name, *options, meta=None, **arguments):
        async def one(client):
            return await client.call_tool(name, arguments, meta=meta)

        return self.talk(one, *options)

    def die(self, name, **arguments):
        self.ledger.with_suffix(".trap").touch()
        with pytest.raises(BaseException):  # noqa: B017, PT011 - the client's transport decides which
            self.call(name, **arguments)
        assert not self.ledger.with_suffix(".trap").exists()

    def effects(self, **filters):
        with treering.open(self.store) as store:
            return list(store.effects.list(**filters))

    @property
    def payments(self):
        return self.ledger.read_text().split("\n")[:-1]


@pytest.fixture
def bank(tmp_path):
    return Bank(tmp_path)


def text(result):
    return result.content[0].text


def test_a_client_sees_the_tools_and_resources_of_the_server(bank):
    async def look(client):
        tools = {each.name: each.input_schema for each in (await client.list_tools()).tools}
        (content,) = (await client.read_resource("bank://terms")).contents
        return tools, content.text, client.instructions

    tools, terms, instructions = bank.talk(look)
    assert set(tools) == {"pay", "pay_once", "balance"}
    assert "idempotency_key" not in tools["pay_once"]["properties"]
    assert (terms, instructions) == ("Payments are final.", "Pays.")


def test_a_call_is_recorded_with_its_result(bank):
    assert text(bank.call("pay", "--thread", "t", order="1")) == "paid 1"
    (effect,) = bank.effects(thread_id="t")
    assert (effect.tool, effect.arguments, effect.status) == ("pay", {"order": "1"}, "done")


def test_a_call_that_nobody_knows_is_not_made_again(bank):
    bank.die("pay", order="1")
    again = bank.call("pay", order="1")
    assert again.is_error
    assert "treering effects" in text(again)
    (unknown,) = bank.effects(status="unknown")
    with treering.open(bank.store) as store:
        store.effects.resolve(unknown.id, happened=True, result="tx_81")
    assert bank.payments == ["1"]


def test_a_tool_with_a_key_is_called_again_with_the_same_key(bank):
    bank.die("pay_once", order="1")
    (effect,) = bank.effects()
    assert text(bank.call("pay_once", order="1")) == f"paid 1 {effect.key}"
    assert bank.payments == [f"1 {effect.key}"]
    assert [each.attempt for each in bank.effects()] == [2]


def test_the_same_call_is_another_one_once_it_has_an_outcome(bank):
    for _ in range(2):
        bank.call("pay", order="1")
    assert bank.payments == ["1", "1"]


def test_a_client_may_name_a_call(bank):
    for _ in range(2):
        assert text(bank.call("pay", order="1", meta={EFFECT_META: "invoice-1"})) == "paid 1"
    assert bank.payments == ["1"]


def test_a_tool_that_only_reads_leaves_no_effect(bank):
    assert bank.call("balance").structured_content == {"result": 0}
    assert bank.effects() == []


def test_the_server_behind_is_a_command_or_a_url():
    assert upstream_of(["https://shop.example/mcp"]) == "https://shop.example/mcp"
    command = upstream_of(["npx", "shop"])
    assert isinstance(command, StdioServerParameters)
    assert (command.command, command.args) == ("npx", ["shop"])
    with pytest.raises(InvalidInput, match="treering proxy mcp"):
        upstream_of([])
