"""Agent loop: conversations that are resumed, streamed and hooked into.

The examples of agent-sdk, with `create_agent` and a model that is a function.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import treering
from tests.agent.scripted import Scripted, answered, asking, forgetful, said, user
from treering.agent import create_agent
from treering.compat import savers
from treering.keyvalue import InMemoryStore

ROOT = Path(__file__).resolve().parents[2]
STYLES = ["openai", "anthropic", "blocks"]


class OwnSaver:
    """As little as a user can write; what it keeps it keeps as JSON."""

    def __init__(self):
        self.kept = {}

    async def save(self, *, thread_id, **fields):
        self.kept[thread_id] = json.dumps(fields)
        return {"thread_id": thread_id, **fields}

    async def load(self, thread_id):
        await asyncio.sleep(0)
        return json.loads(self.kept[thread_id]) if thread_id in self.kept else None


CHECKPOINTERS = {
    "store": lambda folder: treering.open(folder / "store", durability="fast"),
    "memory": lambda _: savers.MemorySaver(),
    "sqlite": lambda folder: savers.SqliteSaver(folder / "saver", durability="fast"),
    "files": lambda folder: savers.FileSaver(folder / "files"),
    "keyvalue": lambda _: savers.KeyValueStoreSaver(InMemoryStore()),
    "own": lambda _: OwnSaver(),
}


@pytest.fixture(params=CHECKPOINTERS)
def checkpointer(request, tmp_path):
    made = CHECKPOINTERS[request.param](tmp_path)
    yield made
    if hasattr(made, "close"):
        made.close()


def kept(checkpointer, thread_id="conversation-1"):
    """What a reader who knows nothing of the agent finds."""
    agent_free = checkpointer.thread(thread_id) if isinstance(checkpointer, treering.Store) else None
    if agent_free is not None:
        return agent_free.load()
    if isinstance(checkpointer, OwnSaver):
        return SimpleNamespace(**json.loads(checkpointer.kept[thread_id]))
    return checkpointer.load(thread_id)


def search(query: str) -> str:
    """Look something up."""
    return f"found {query}"


# C10
class TestResuming:
    def test_the_agent_remembers(self, checkpointer) -> None:
        agent = create_agent(model=forgetful, checkpointer=checkpointer)
        agent.generate(thread_id="conversation-1", prompt="Hello, my name is Alice")
        again = agent.generate(thread_id="conversation-1", prompt="What's my name?")
        assert again.text == "Your name is Alice"
        other = agent.generate(thread_id="conversation-2", prompt="What's my name?")
        assert other.text == "Hello!"
        assert kept(checkpointer).messages == [
            user("Hello, my name is Alice"),
            said("Hello!"),
            user("What's my name?"),
            said("Your name is Alice"),
        ]

    def test_the_agent_remembers_in_async_code(self, checkpointer) -> None:
        async def talk():
            agent = create_agent(model=forgetful, checkpointer=checkpointer)
            await agent.agenerate(thread_id="conversation-1", prompt="Hello, my name is Alice")
            return await agent.agenerate(thread_id="conversation-1", prompt="What's my name?")

        assert asyncio.run(talk()).text == "Your name is Alice"
        assert len(kept(checkpointer).messages) == 4

    def test_another_process_remembers(self, tmp_path) -> None:
        code = """
import sys
from tests.agent.scripted import forgetful
from treering.compat import savers
from treering.agent import create_agent
with create_agent(model=forgetful, checkpointer=sys.argv[1]) as agent:
    print(agent.generate(thread_id="conversation-1", prompt=sys.argv[2]).text)
"""
        texts = [
            subprocess.run(
                [sys.executable, "-c", code, str(tmp_path / "store"), prompt],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout.strip()
            for prompt in ("Hello, my name is Alice", "What's my name?")
        ]
        assert texts == ["Hello!", "Your name is Alice"]


# C9
class TestTranscript:
    @pytest.mark.parametrize("style", STYLES)
    def test_tool_calls_and_results_are_kept_as_the_provider_has_them(self, checkpointer, style) -> None:
        wants = asking(("c1", "search", {"query": "rings"}), style=style)
        agent = create_agent(model=Scripted(wants, said("Found.")), tools=[search], checkpointer=checkpointer)
        result = agent.generate(thread_id="conversation-1", prompt="Look")
        assert kept(checkpointer).messages == [
            user("Look"),
            wants,
            answered("c1", "found rings", style=style, name="search"),
            said("Found."),
        ]
        assert result.messages == kept(checkpointer).messages
        assert result.text == "Found."

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda messages: {"text": "ignored", "messages": messages},
            lambda messages: SimpleNamespace(text="ignored", response=SimpleNamespace(messages=messages)),
            lambda messages: iter(["igno", "red", {"messages": messages}]),
            lambda messages: messages,
        ],
        ids=["messages", "response.messages", "stream", "list"],
    )
    def test_a_response_with_messages_is_saved_directly(self, checkpointer, wrap) -> None:
        made_by_the_provider = [
            asking(("p1", "web", {"q": 1}), style="blocks"),
            answered("p1", "page", style="blocks", name="web"),
            said("It says so."),
        ]
        agent = create_agent(model=Scripted(wrap(made_by_the_provider)), checkpointer=checkpointer)
        agent.generate(thread_id="conversation-1", prompt="Look")
        assert kept(checkpointer).messages == [user("Look"), *made_by_the_provider]

    @pytest.mark.parametrize(
        "reply",
        [
            lambda: "plain",
            lambda: {"text": "plain", "messages": []},
            lambda: SimpleNamespace(text="plain"),
            lambda: iter(["pl", "ain"]),
        ],
        ids=["string", "dict", "object", "stream"],
    )
    def test_without_messages_the_text_is_kept(self, reply) -> None:
        with treering.open("memory:") as store:
            create_agent(model=Scripted(reply()), checkpointer=store).generate(thread_id="t", prompt="Hi")
            assert store.thread("t").load().messages == [user("Hi"), said("plain")]


# C11
class TestIncrementalCheckpoints:
    def test_a_stream_saves_after_every_step(self, checkpointer) -> None:
        wants = asking(("c1", "search", {"query": "a"}), ("c2", "search", {"query": "b"}))
        agent = create_agent(model=Scripted(wants, said("Both.")), tools=[search], checkpointer=checkpointer)
        kinds, lengths = [], []
        for part in agent.stream(
            thread_id="conversation-1", prompt="Continue", checkpoint_after_tool_call=True
        ):
            kinds.append(part.kind)
            if part.kind == "checkpoint":
                lengths.append(len(kept(checkpointer).messages))
        assert lengths == [2, 3, 4, 5]
        assert kinds == [
            *("text", "message", "checkpoint"),
            *("tool_call", "tool_result", "checkpoint"),
            *("tool_call", "tool_result", "checkpoint"),
            *("text", "message", "checkpoint", "finish"),
        ]

    def test_without_it_a_stream_saves_at_its_end(self, checkpointer) -> None:
        wants = asking(("c1", "search", {"query": "a"}))
        agent = create_agent(model=Scripted(wants, said("Done.")), tools=[search], checkpointer=checkpointer)
        parts = list(agent.stream(thread_id="conversation-1", prompt="Continue"))
        assert [part.kind for part in parts].count("checkpoint") == 1
        assert parts[-1].result.checkpoint is not None
        assert len(kept(checkpointer).messages) == 4

    @pytest.mark.faults
    @pytest.mark.parametrize(
        "checkpointer, style, death",
        [
            ("url", "anthropic", ("--die-after", 1)),
            ("store", "blocks", ("--die-after", 3)),
            ("store", "openai", ("--die-after", 4)),
            ("sqlite", "openai", ("--die-in", 3)),
            ("files", "openai", ("--die-after", 2)),
        ],
        ids=lambda value: value if isinstance(value, str) else f"{value[0][2:]}-{value[1]}",
    )
    def test_a_process_killed_after_tool_k_continues_with_the_next(
        self, tmp_path, checkpointer, style, death
    ) -> None:
        log = tmp_path / "log"

        def work(*arguments):
            command = [sys.executable, "-m", "tests.agent.worker", checkpointer, str(tmp_path / "kept")]
            return subprocess.run(
                [*command, str(log), "--style", style, *map(str, arguments)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )

        killed = work("--prompt", "Note all four", *death)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        made = death[1] if death[0] == "--die-after" else death[1] - 1
        assert (log.read_text().split() if log.exists() else []) == [str(k) for k in range(1, made + 1)]

        resumed = work()
        assert resumed.returncode == 0, resumed.stderr
        assert log.read_text().split() == ["1", "2", "3", "4"], "every tool ran exactly once"
        found = json.loads(resumed.stdout)
        assert (found["text"], found["made"]) == ("All 4 are done.", 4 - made)


# C12
class TestHooks:
    def test_the_three_hooks(self) -> None:
        said_by_hooks = []

        async def before(saving):
            count = len(saving.checkpoint.messages)
            said_by_hooks.append(f"Saving checkpoint for {saving.thread_id} with {count} messages")
            await asyncio.sleep(0)
            return {}

        async def after(saved):
            said_by_hooks.append(f"Checkpoint saved for {saved.thread_id}")

        def loaded(saved):
            count = len(saved.checkpoint.messages)
            said_by_hooks.append(f"Loaded checkpoint for {saved.thread_id} with {count} messages")

        hooks = {
            "pre_checkpoint_save": [before],
            "post_checkpoint_save": [after],
            "post_checkpoint_load": [loaded],
        }
        with treering.open("memory:") as store:
            agent = create_agent(model=forgetful, checkpointer=store, hooks=hooks)
            agent.generate(thread_id="t", prompt="Hello")
            asyncio.run(agent.agenerate(thread_id="t", prompt="Again"))
            assert said_by_hooks == [
                "Saving checkpoint for t with 2 messages",
                "Checkpoint saved for t",
                "Loaded checkpoint for t with 2 messages",
                "Saving checkpoint for t with 4 messages",
                "Checkpoint saved for t",
            ]
            said_by_hooks.clear()
            store.thread("by-hand").append(user("Hi"))
            assert said_by_hooks == []  # they are the agent's, not the store's

    @pytest.mark.parametrize("kind", ["memory", "files", "keyvalue"])
    def test_they_fire_for_a_saver_too(self, tmp_path, kind) -> None:
        fired = []
        saver = CHECKPOINTERS[kind](tmp_path)
        hooks = {"post_checkpoint_save": lambda saved: fired.append(saved.thread_id)}
        create_agent(model=forgetful, checkpointer=saver, hooks=hooks).generate(thread_id="t", prompt="Hi")
        assert fired == ["t"]
        saver.close()

    def test_a_hook_may_change_what_is_saved(self) -> None:
        def redact(saving):
            return {
                "messages": [
                    {**each, "content": each["content"].replace("4711", "****")} for each in saving.messages
                ]
            }

        with treering.open("memory:") as store:
            agent = create_agent(
                model=Scripted("Your PIN is 4711.", "Bye."),
                checkpointer=store,
                hooks={"pre_checkpoint_save": [redact]},
            )
            assert agent.generate(thread_id="t", prompt="PIN?").text == "Your PIN is 4711."
            agent.generate(thread_id="t", prompt="Thanks")
            assert [each["content"] for each in store.thread("t").load().messages] == [
                "PIN?",
                "Your PIN is ****.",
                "Thanks",
                "Bye.",
            ]

    def test_a_veto_is_no_failure(self) -> None:
        with treering.open("memory:") as store:
            agent = create_agent(
                model=forgetful, checkpointer=store, hooks={"pre_checkpoint_save": [lambda _: False]}
            )
            result = agent.generate(thread_id="t", prompt="Hi")
            assert (result.text, result.checkpoint) == ("Hello!", None)
            assert store.thread("t").head is None
