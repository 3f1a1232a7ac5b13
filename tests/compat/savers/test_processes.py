"""Several processes save to one storage: no save is lost."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import treering
from tests.compat.savers.savers_under_test import kinds, say
from treering.compat.savers import FileSaver, KeyValueStoreSaver, PostgresSaver, SqliteSaver
from treering.keyvalue import RedisStore

COUNT = 15

WRITER = f"""
import sys
import treering
from treering.keyvalue import RedisStore
from treering.compat.savers import FileSaver, KeyValueStoreSaver, PostgresSaver, SqliteSaver
kind, where, thread, name = sys.argv[1:]
saver = {{
    "files": lambda: FileSaver(where, None),
    "sqlite": lambda: SqliteSaver(where, durability="fast"),
    "postgres": lambda: PostgresSaver(where),
    "redis": lambda: KeyValueStoreSaver(RedisStore(where)),
    "redis, the last 5": lambda: KeyValueStoreSaver(RedisStore(where), keep=treering.Keep(last=5)),
}}[kind]()
print("ready", flush=True)
sys.stdin.readline()
for number in range({COUNT}):
    saver.save(thread_id=thread, messages=[{{"by": name, "number": number}}])
saver.close()
"""


def write_at_once(kind, where, threads):
    """Processes that wait for each other and then save, each under its own name."""
    with ExitStack() as stack:
        writers = []
        for name, thread in enumerate(threads):
            command = [sys.executable, "-c", WRITER, kind, str(where), thread, str(name)]
            writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            writers.append(stack.enter_context(writer))
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        assert [writer.wait(60) for writer in writers] == [0] * len(writers)


def written(history):
    return sorted((each.messages[0]["by"], each.messages[0]["number"]) for each in history)


@pytest.mark.parametrize("kind", kinds(["files", "sqlite", "postgres", "redis"]))
def test_two_processes_save_to_one_thread(kind, request, tmp_path):
    is_served = kind in ("postgres", "redis")
    where = request.getfixturevalue(f"{kind}_url") if is_served else tmp_path / "kept"
    write_at_once(kind, where, ["t", "t"])
    open_ = {
        "files": lambda: FileSaver(where, None),
        "sqlite": lambda: SqliteSaver(where),
        "postgres": lambda: PostgresSaver(where),
        "redis": lambda: KeyValueStoreSaver(RedisStore(where)),
    }
    with open_[kind]() as saver:
        history = list(saver.list("t"))
        assert [each.step for each in history] == list(range(2 * COUNT - 1, -1, -1))
        assert written(history) == sorted((name, number) for name in "01" for number in range(COUNT))
        for name in "01":
            own = [each.messages[0]["number"] for each in history if each.messages[0]["by"] == name]
            assert own == sorted(own, reverse=True)


def test_three_processes_save_to_one_thread_and_prune_it(redis_url):
    write_at_once("redis, the last 5", redis_url, ["t", "t", "t"])
    saver = KeyValueStoreSaver(RedisStore(redis_url), keep=treering.Keep(last=5))
    saver.save(thread_id="t", messages=[{"by": "me", "number": 0}])
    history = list(saver.list("t"))
    assert [each.step for each in history] == [3 * COUNT - number for number in range(5)]
    assert all(each.messages and each.state is not None for each in history)
    saver.delete("t")
    assert RedisStore(redis_url).list() == []


def test_two_processes_share_a_redis_with_a_thread_each(redis_url):
    write_at_once("redis", redis_url, ["t0", "t1"])
    saver = KeyValueStoreSaver(RedisStore(redis_url))
    for name in "01":
        assert written(saver.list(f"t{name}")) == [(name, number) for number in range(COUNT)]


def test_threads_of_a_process_save_to_one_thread(anywhere):
    saver = anywhere.open()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: saver.save(thread_id="t", messages=[say(str(number))]), range(24)))
    history = list(saver.list("t"))
    assert [each.step for each in history] == list(range(23, -1, -1))
    assert {each.messages[0]["content"] for each in history} == {str(number) for number in range(24)}
