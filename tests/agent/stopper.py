"""A process that stops runs at each of their events, and one that continues them.

python -m tests.agent.stopper FOLDER {sync,async} {each,end} {close,die,continue}

`close` closes the stream of thread N at its N-th event; `die` leaves all streams where they are and kills the
process. The model wants two calls, the second one needs approval, which is given at once. `FOLDER/log` has a
line for every call of the model and of a tool: the thread, and what was called. Prints the number of threads.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import treering
from tests.agent.scripted import asking, said
from treering.agent import Context, create_agent, tool
from treering.errors import InvalidInput


def agent_of(store, folder):
    def log(thread_id, what):
        with (folder / "log").open("a") as file:
            file.write(f"{thread_id} {what}\n")

    @tool
    def look(context: Context) -> str:
        log(context.thread_id, "look")
        return "seen"

    @tool(needs_approval=True)
    def delete(context: Context) -> str:
        log(context.thread_id, "delete")
        return "gone"

    def model(messages, tools):  # noqa: ARG001
        log(messages[0]["content"], "model")
        if messages[-1]["role"] == "tool":
            return said("Done.")
        return asking(("c1", "look", {}), ("c2", "delete", {}))

    return create_agent(model=model, tools=[look, delete], checkpointer=store)


async def events_of(agent, store, thread_id, checkpoint, streams, *, is_async):
    """The events of a run that is approved of when it asks."""
    for prompt in (thread_id, None):
        asked = {"thread_id": thread_id, "prompt": prompt, "checkpoint_after_tool_call": checkpoint}
        stream = agent.astream(**asked) if is_async else agent.stream(**asked)
        streams.append(stream)
        if is_async:
            async for event in stream:
                yield event
        else:
            for event in stream:
                yield event
        if prompt is not None:
            store.thread(thread_id).resume("approve")


async def stop(agent, store, how, checkpoint, *, is_async):
    count, is_finished, held = 0, False, []
    while not is_finished:
        count += 1
        streams = []
        events = events_of(agent, store, f"t{count}", checkpoint, streams, is_async=is_async)
        for _ in range(count):
            try:
                await anext(events)
            except StopAsyncIteration:
                is_finished = True
        held.append((events, streams))
        if how == "close":
            await (streams[-1].aclose() if is_async else asyncio.to_thread(streams[-1].close))
    print(count, flush=True)
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)


async def go_on(agent, store, checkpoint, *, is_async):
    for thread_id in [info.id for info in store.threads()]:
        asked = {"thread_id": thread_id, "checkpoint_after_tool_call": checkpoint}
        while True:
            try:
                if store.thread(thread_id).load().pending_interrupt is not None:
                    asked_now = {**asked, "decision": "approve"}
                    result = await agent.aresume(**asked_now) if is_async else agent.resume(**asked_now)
                else:
                    result = await agent.agenerate(**asked) if is_async else agent.generate(**asked)
            except InvalidInput as error:
                assert "no unfinished run" in str(error)  # noqa: PT017
                break
            if result.interrupt is None:
                break


def main():
    folder, mode, checkpoint, how = Path(sys.argv[1]), *sys.argv[2:]
    with treering.open(folder / "store", durability="fast") as store:
        agent = agent_of(store, folder)
        given = {"checkpoint": checkpoint == "each", "is_async": mode == "async"}
        work = go_on(agent, store, **given) if how == "continue" else stop(agent, store, how, **given)
        asyncio.run(work)


if __name__ == "__main__":
    main()
