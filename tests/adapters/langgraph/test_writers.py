"""Several writers: on one thread nobody's checkpoint is lost, on several nobody waits for another."""

from __future__ import annotations

import threading
import tracemalloc

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

import treering
from tests.adapters.langgraph.scripts import config
from treering.adapters.langgraph import TreeringSaver

STEPS = 25


def run(saver, name, failures, began):
    """One run from where the thread is, with no regard for others."""
    try:
        where = saver.get_tuple(config()).config
        messages = saver.get(where)["channel_values"]["messages"]
        began.wait()
        for number in range(STEPS):
            message = AIMessage(f"{name} {number}", id=f"{name}-{number}")
            saver.put_writes(where, [("messages", [message])], f"{name}-{number}")
            messages = [*messages, message]
            where = put(saver, where, messages, number)
        found = saver.get_tuple(where)
        assert found.checkpoint["channel_values"]["messages"] == messages
    except BaseException as error:  # noqa: BLE001 - looked at below
        failures.append(error)


def put(saver, parent, messages, step):
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": messages}
    checkpoint["channel_versions"] = {"messages": step}
    return saver.put(parent, checkpoint, {"source": "loop", "step": step}, {"messages": step})


def test_runs_side_by_side_become_branches(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store:
        put(TreeringSaver(store), config(checkpoint_ns=""), [HumanMessage("begin", id="begin")], 0)
        shared, failures, began = TreeringSaver(store), [], threading.Barrier(4)
        savers = [shared, shared, TreeringSaver(store), TreeringSaver(store)]
        threads = [
            threading.Thread(target=run, args=(saver, f"run {number}", failures, began))
            for number, saver in enumerate(savers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        found = list(TreeringSaver(store).list(config()))
        assert len(found) == 4 * STEPS + 1
        ids = [each.checkpoint["id"] for each in found]
        assert ids == sorted(ids, reverse=True)
        assert TreeringSaver(store).get(config())["id"] == max(ids)
        for each in found:
            names = [
                message.id.rpartition("-")[0] for message in each.checkpoint["channel_values"]["messages"]
            ]
            assert len(set(names)) <= 2
            assert [write[1] for write in each.pending_writes] == ["messages"] * len(each.pending_writes)
        assert store.verify().ok


def test_threads_of_one_saver_commit_at_the_same_time(tmp_path, monkeypatch):
    """So that the engine can make them durable together: each commit here waits for the other one to come."""
    both = threading.Barrier(2, timeout=60)
    with treering.open(tmp_path / "store", durability="fast") as store:
        saver, failures = TreeringSaver(store), []
        commit = store.engine.commit

        def together(batch):
            both.wait()
            return commit(batch)

        def save(thread):
            try:
                where = put(saver, config(thread, checkpoint_ns=""), [HumanMessage("a", id="a")], 0)
                saver.put_writes(where, [("messages", [AIMessage("b", id="b")])], "task")
            except BaseException as error:  # noqa: BLE001 - looked at below
                failures.append(error)

        monkeypatch.setattr(store.engine, "commit", together)
        threads = [threading.Thread(target=save, args=(name,)) for name in ("alice", "bob")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_loading_a_long_thread_takes_little_more_than_its_state(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store:
        messages = [AIMessage("word " * 300, id=f"{number:036}") for number in range(1500)]
        put(TreeringSaver(store), config(checkpoint_ns=""), messages, 0)
        saver = TreeringSaver(store)
        saver.get_tuple(config("nobody"))
        tracemalloc.start()
        try:
            loaded = saver.get_tuple(config())
            peak = tracemalloc.get_traced_memory()[1]
            saver._writer.forget()
            own = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert loaded.checkpoint["channel_values"]["messages"] == messages
        assert peak < 1.5 * own
