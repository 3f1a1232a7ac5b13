"""Sync and async models, tools, middleware, hooks and savers can be mixed, under sync and async calls."""

from __future__ import annotations

import asyncio
import threading

import pytest

import treering
from tests.agent.scripted import Scripted, answered, asking, said
from treering.agent import create_agent, tool
from treering.errors import Unsupported

WANTS = asking(("c1", "look", {"n": 1}))


def plain_model():
    return Scripted(WANTS, "Done.")


def async_model():
    script = Scripted(WANTS, "Done.")

    async def model(messages, tools):
        await asyncio.sleep(0)
        return script(messages, tools)

    return model


def streaming_model():
    script = Scripted(["Let ", "me ", WANTS], ["Do", "ne."])

    def model(messages, tools):
        yield from script(messages, tools)

    return model


def async_streaming_model():
    script = Scripted(["Let ", "me ", WANTS], ["Do", "ne."])

    async def model(messages, tools):
        for piece in script(messages, tools):
            await asyncio.sleep(0)
            yield piece

    return model


def object_model():
    class Model:
        def __init__(self):
            self.script = Scripted(WANTS, "Done.")

        async def __call__(self, messages, tools):
            return self.script(messages, tools)

    return Model()


def plain_tool():
    def look(n: int) -> int:
        return n

    return look


def async_tool():
    async def look(n: int) -> int:
        await asyncio.sleep(0)
        return n

    return look


class PlainAround:
    def wrap_tool(self, call, context, proceed):  # noqa: ARG002
        return proceed(call) + 1


class AsyncAround:
    async def wrap_tool(self, call, context, proceed):  # noqa: ARG002
        return await proceed(call) + 1

    async def before_model(self, messages, context):  # noqa: ARG002
        await asyncio.sleep(0)
        return messages


MODELS = [plain_model, async_model, streaming_model, async_streaming_model, object_model]


@pytest.mark.parametrize("around", [[], [PlainAround(), AsyncAround()], [AsyncAround(), PlainAround()]])
@pytest.mark.parametrize("make_tool", [plain_tool, async_tool])
@pytest.mark.parametrize("make_model", MODELS)
@pytest.mark.parametrize("way", ["generate", "agenerate"])
def test_everything_mixes(way, make_model, make_tool, around) -> None:
    with treering.open("memory:") as store:
        agent = create_agent(model=make_model(), tools=[make_tool()], checkpointer=store, middleware=around)
        if way == "generate":
            result = agent.generate(thread_id="t", prompt="Hi")
        else:
            result = asyncio.run(agent.agenerate(thread_id="t", prompt="Hi"))
        assert result.text == "Done."
        assert result.messages[1:3] == [WANTS, answered("c1", str(1 + len(around)))]
        assert store.thread("t").load().messages == result.messages


def test_async_code_runs_in_the_callers_own_loop() -> None:
    loops = set()

    class Around:
        def wrap_tool(self, call, context, proceed):  # noqa: ARG002 - plain, around an async tool
            return proceed(call)

    async def look(n: int) -> int:
        loops.add(asyncio.get_running_loop())
        return n

    async def model(messages, tools):
        loops.add(asyncio.get_running_loop())
        return script(messages, tools)

    async def hook(_):
        loops.add(asyncio.get_running_loop())

    script = Scripted(WANTS, "Done.")

    async def work():
        with treering.open("memory:") as store:
            agent = create_agent(
                model=model,
                tools=[look],
                checkpointer=store,
                middleware=[Around()],
                hooks={"post_checkpoint_save": [hook]},
            )
            await agent.agenerate(thread_id="t", prompt="Hi")
            assert loops == {asyncio.get_running_loop()}

    asyncio.run(work())


def test_sync_code_never_blocks_the_loop() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def model(messages, tools):  # noqa: ARG001
        inside.set()
        assert go_on.wait(timeout=60)
        return "Done."

    async def work():
        answer = asyncio.create_task(create_agent(model=model).agenerate(prompt="Hi"))
        await asyncio.to_thread(inside.wait)
        go_on.set()  # this line runs while the model waits for it
        return await answer

    assert asyncio.run(work()).text == "Done."


def test_waiting_in_a_loop_for_async_code_is_refused() -> None:
    async def work():
        create_agent(model=async_model(), tools=[plain_tool()]).generate(prompt="Hi")

    with pytest.raises(Unsupported, match="await the async form"):
        asyncio.run(work())


def test_text_is_yielded_as_it_arrives() -> None:
    agent = create_agent(model=async_streaming_model(), tools=[plain_tool()])
    kinds = [(part.kind, part.text) for part in agent.stream(prompt="Hi")]
    assert kinds == [
        ("text", "Let "),
        ("text", "me "),
        ("piece", ""),
        ("message", ""),
        ("tool_call", ""),
        ("tool_result", "1"),
        ("text", "Do"),
        ("text", "ne."),
        ("message", ""),
        ("finish", "Done."),
    ]


def test_pieces_of_a_provider_pass_through() -> None:
    raw = {"type": "content_block_delta", "delta": {"partial_json": "{"}}
    agent = create_agent(model=Scripted(iter([raw, said("Done.")])))
    parts = list(agent.stream(prompt="Hi"))
    assert [part.value for part in parts if part.kind == "piece"] == [raw]
    assert [part.text for part in parts if part.kind == "text"] == ["Done."]
    assert parts[-1].result.messages[-1] == said("Done.")


def test_an_abandoned_stream_is_closed_and_saves_nothing_more() -> None:
    closed = []

    def model(messages, tools):  # noqa: ARG001
        try:
            yield from ("a", "b", "c")
        finally:
            closed.append("plain")

    async def slow_model(messages, tools):  # noqa: ARG001
        try:
            for piece in "abc":
                yield piece
        finally:
            closed.append("async")

    async def leave():
        parts = create_agent(model=slow_model, checkpointer=store).astream(thread_id="u", prompt="Hi")
        assert (await anext(parts)).text == "a"
        await parts.aclose()

    with treering.open("memory:") as store:
        parts = create_agent(model=model, checkpointer=store).stream(thread_id="t", prompt="Hi")
        assert next(parts).text == "a"
        parts.close()
        asyncio.run(leave())
        assert store.thread("t").head is None
        assert store.thread("u").head is None
    assert closed == ["plain", "async"]


def test_a_cancelled_run_can_be_continued() -> None:
    made = []

    async def look(n: int) -> int:
        made.append(n)
        if n == 2 and made.count(2) == 1:
            waiting.set()
            await asyncio.Event().wait()
        return n

    waiting = asyncio.Event()
    wants = asking(("c1", "look", {"n": 1}), ("c2", "look", {"n": 2}))

    async def work(store):
        tools = [tool(look, replay="safe")]
        agent = create_agent(model=Scripted(wants, "Done."), tools=tools, checkpointer=store)
        run = asyncio.create_task(
            agent.agenerate(thread_id="t", prompt="Hi", checkpoint_after_tool_call=True)
        )
        await waiting.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        return await agent.agenerate(thread_id="t")

    with treering.open("memory:") as store:
        assert asyncio.run(work(store)).text == "Done."
    assert made == [1, 2, 2]


def test_a_cancelled_run_ends_when_its_save_has_ended() -> None:
    saving, go_on = threading.Event(), threading.Event()

    def slow(_):
        saving.set()
        assert go_on.wait(timeout=60)

    async def work(store):
        agent = create_agent(
            model=Scripted("Done."), checkpointer=store, hooks={"pre_checkpoint_save": [slow]}
        )
        run = asyncio.create_task(agent.agenerate(thread_id="t", prompt="Hi"))
        await asyncio.to_thread(saving.wait)
        run.cancel()
        await asyncio.sleep(0)
        assert not run.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert len(store.thread("t").load().messages) == 2, "what was being saved is saved"

    with treering.open("memory:") as store:
        asyncio.run(work(store))


def test_many_runs_with_layers_of_both_kinds_do_not_wait_for_each_other() -> None:
    together = threading.Barrier(40)

    def look(n: int) -> int:
        together.wait(timeout=60)
        return n

    def model(messages, tools):  # noqa: ARG001
        return said("Done.") if messages[-1]["role"] == "tool" else WANTS

    async def work():
        around = [PlainAround(), AsyncAround(), PlainAround()]
        agent = create_agent(model=model, tools=[look], middleware=around)
        return await asyncio.gather(*(agent.agenerate(prompt="Hi") for _ in range(40)))

    assert {result.messages[2]["content"] for result in asyncio.run(work())} == {"4"}


def test_a_sync_stream_stays_in_one_thread() -> None:
    threads = set()

    def model(messages, tools):  # noqa: ARG001
        for piece in "abc":
            threads.add(threading.get_ident())
            yield piece

    assert asyncio.run(create_agent(model=model).agenerate(prompt="Hi")).text == "abc"
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_a_sync_stream_that_is_cancelled_in_the_middle_of_a_piece_is_closed_after_it() -> None:
    inside, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def model(messages, tools):  # noqa: ARG001
        try:
            inside.set()
            assert go_on.wait(timeout=60)
            yield "late"
        finally:
            closed.set()

    async def work():
        run = asyncio.create_task(create_agent(model=model).agenerate(prompt="Hi"))
        await asyncio.to_thread(inside.wait)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert not closed.is_set()
        go_on.set()
        await asyncio.to_thread(closed.wait)

    asyncio.run(work())
    assert closed.is_set()


def test_a_stream_that_breaks_is_closed_and_its_error_is_raised() -> None:
    class Broken:
        closed = False

        def __next__(self):
            raise ConnectionError("cut off")

        def __iter__(self):
            return self

        def close(self):
            self.closed = True

    for way in ("plain", "async"):
        broken = Broken()
        agent = create_agent(model=Scripted(broken))
        with pytest.raises(ConnectionError, match="cut off"):
            agent.generate(prompt="Hi") if way == "plain" else asyncio.run(agent.agenerate(prompt="Hi"))
        assert broken.closed


def test_an_agent_serves_many_threads_at_once() -> None:
    async def model(messages, tools):  # noqa: ARG001
        await asyncio.sleep(0)
        return said(f"{messages[-1]['content']}!")

    async def work():
        async with treering.open_async("memory:") as store:
            agent = create_agent(model=model, checkpointer=store)
            async with agent:
                runs = (agent.agenerate(thread_id=f"t{n}", prompt=str(n)) for n in range(20))
                texts = [result.text for result in await asyncio.gather(*runs)]
            assert len(store.sync.thread("t7").load().messages) == 2
            return texts

    assert asyncio.run(work()) == [f"{n}!" for n in range(20)]
