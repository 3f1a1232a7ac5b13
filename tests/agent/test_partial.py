"""Half-streamed replies are kept chunk by chunk, and continued or discarded."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from typing import Any

import pytest

import treering
from treering.agent import create_agent
from treering.errors import InvalidInput


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


class Talker:
    """A model whose stream breaks off the first time, and what it was shown."""

    def __init__(self, *, breaks: Any = KeyboardInterrupt) -> None:
        self.breaks = breaks
        self.shown: list[Any] = []

    def __call__(self, messages: Any, tools: Any) -> Any:
        del tools
        self.shown.append(messages)
        begun = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
        rest = "One two three four".removeprefix(begun)
        for word in rest.split(" "):
            if word == "three" and self.breaks is not None:
                how, self.breaks = self.breaks, None
                raise how
            yield word if word == "four" else word + " "


def broken(store: treering.Store, talker: Any, thread: str = "t") -> Any:
    agent = create_agent(model=talker, checkpointer=store)
    with pytest.raises((KeyboardInterrupt, ConnectionError)):
        agent.generate(thread_id=thread, prompt="Count")
    return agent


@pytest.mark.parametrize("how", [KeyboardInterrupt, ConnectionError])
def test_what_was_said_is_kept(store, how) -> None:
    broken(store, Talker(breaks=how))
    partial = store.thread("t").partial()
    assert partial is not None
    assert (partial.text, partial.after, partial.unsaved) == (
        "One two ",
        0,
        [{"role": "user", "content": "Count"}],
    )
    assert store.thread("t").head is None


def test_a_model_goes_on_behind_it(store) -> None:
    talker = Talker()
    agent = broken(store, talker)
    events = list(agent.stream(thread_id="t", partial="continue"))
    assert "".join(each.text or "" for each in events if each.kind == "text") == "One two three four"
    assert [each["content"] for each in store.thread("t").load().messages] == ["Count", "One two three four"]
    assert talker.shown[1][-1] == {"role": "assistant", "content": "One two "}
    assert store.thread("t").partial() is None


def test_it_is_discarded_by_default(store) -> None:
    store.thread("t").append({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"})
    talker = Talker()
    agent = broken(store, talker)
    assert agent.generate(thread_id="t", prompt="Count").text == "One two three four"
    assert [each[-1]["role"] for each in talker.shown] == ["user", "user"]
    assert store.thread("t").load().message_count == 4
    assert store.thread("t").discard_partial() is False


def test_it_is_forgotten_when_told_and_when_the_thread_goes_on(store) -> None:
    agent = broken(store, Talker())
    assert store.thread("t").discard_partial() is True
    assert store.thread("t").partial() is None
    with pytest.raises(InvalidInput, match="no unfinished run"):
        agent.generate(thread_id="t", partial="continue")
    broken(store, Talker(), "u")
    store.thread("u").append({"role": "user", "content": "Never mind"})
    assert store.thread("u").partial() is None
    with pytest.raises(InvalidInput, match="use discard or continue"):
        agent.generate(thread_id="t", partial="keep")


def test_a_model_that_does_not_stream_goes_on_too(store) -> None:
    broken(store, Talker())
    agent = create_agent(
        model=lambda _messages, _tools: {"role": "assistant", "content": "three"}, checkpointer=store
    )
    assert agent.generate(thread_id="t", partial="continue").text == "One two three"


def test_a_cancelled_task_keeps_what_was_said(store) -> None:
    async def model(_messages: Any, _tools: Any) -> Any:
        async def stream() -> Any:
            yield "One "
            await asyncio.Event().wait()

        return stream()

    async def cancel() -> None:
        agent = create_agent(model=model, checkpointer=store)
        events = agent.astream(thread_id="t", prompt="Count")
        async for event in events:
            if event.kind == "text":
                break
        await events.aclose()  # pyright: ignore[reportAttributeAccessIssue]

    asyncio.run(cancel())
    partial = store.thread("t").partial()
    assert partial is not None
    assert partial.text == "One "


def die_in_the_stream(url: str) -> None:
    def model(_messages: Any, _tools: Any) -> Any:
        yield "One "
        yield "two "
        while (found := store.thread("t").partial()) is None or found.text != "One two ":
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    with treering.open(url) as store:
        create_agent(model=model, checkpointer=store).generate(thread_id="t", prompt="Count")


def test_a_killed_process_leaves_every_chunk_that_was_acknowledged(tmp_path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die_in_the_stream, args=(str(tmp_path),))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    with treering.open(tmp_path) as store:
        agent = create_agent(model=Talker(breaks=None), checkpointer=store)
        assert agent.generate(thread_id="t", partial="continue").text == "One two three four"
        assert store.verify().ok


def test_the_command_line_shows_and_discards_a_half_streamed_reply(tmp_path, capsys) -> None:
    from treering.cli.main import main

    def told(*arguments: str) -> tuple[str, Any]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--store", str(tmp_path / "store")])
        return capsys.readouterr().out, ended.value.code

    with treering.open(tmp_path / "store") as store:
        agent = create_agent(model=lambda *_: "Ready.", checkpointer=store)
        agent.generate(thread_id="t", prompt="Hello")
        agent.generate(thread_id="t", prompt="Hello again")
        broken(store, Talker())
    assert "Hello" in told("show", "t")[0]
    out, _ = told("show", "t")
    assert ("half-streamed reply (run " in out, "One two" in out) == (True, True)
    assert "half-streamed" not in told("show", "t@0")[0]
    out, _ = told("partial", "t", "--json")
    assert '"text": "One two "' in out
    assert told("partial", "t", "--discard")[0].startswith("discarded:\n")
    assert told("partial", "t")[1] == 3
