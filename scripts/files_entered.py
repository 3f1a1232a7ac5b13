"""Count the source files that one operation enters: a measure of how far a reader has to look.

    python scripts/files_entered.py [-v]

Each operation runs once to warm up; then its second run is traced in every thread, and the distinct files of
the package whose functions were called are counted. `-v` lists them.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import treering
from treering.server.app import create_app

PACKAGE = str(Path(treering.__file__).parent)


def entered(operation: Callable[[], object]) -> list[str]:
    """Return the files of the package whose functions ``operation`` calls."""
    files: set[str] = set()

    def profile(frame, event, _argument):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            files.add(name.removeprefix(PACKAGE + "/"))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        operation()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(files)


def append(store):
    thread = store.thread("append")
    thread.append({"role": "user", "content": "one"})
    return lambda: thread.append({"role": "user", "content": "two"})


def langgraph_put(store):
    from langgraph.checkpoint.base import empty_checkpoint

    from treering.adapters.langgraph import TreeringSaver

    saver = TreeringSaver(store)
    config = {"configurable": {"thread_id": "graph", "checkpoint_ns": ""}}

    def put(config, step, messages):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": messages}
        checkpoint["channel_versions"] = {"messages": step}
        return saver.put(config, checkpoint, {"source": "loop", "step": step}, {"messages": step})

    first = put(config, 1, ["a"])
    return lambda: put(first, 2, ["a", "b"])


def timeline_request(store):
    import asyncio

    import httpx

    with store.run(agent="a") as run:
        run.message("user", "hello")
        with run.tool("search", input={}) as call:
            call.output = 1
    app = create_app(store)

    async def request():
        transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as client:
            response = await client.get(f"/runs/{run.id}/timeline")
        assert response.status_code == 200, response.text

    def get():
        asyncio.run(request())  # in a loop of its own, so that its worker threads are traced

    get()
    return get


def forget(store):
    for name in ("first", "second"):
        store.thread(name).append({"role": "user", "content": name})
    store.forget(thread="first")
    return lambda: store.forget(thread="second")


def main() -> None:
    operations = {
        "thread.append": append,
        "LangGraph put": langgraph_put,
        "GET /runs/{id}/timeline": timeline_request,
        "forget": forget,
    }
    for name, prepare in operations.items():
        with tempfile.TemporaryDirectory() as folder, treering.open(folder) as store:
            files = entered(prepare(store))
        print(f"{len(files):4}  {name}")
        if "-v" in sys.argv[1:]:
            print(*(f"        {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
