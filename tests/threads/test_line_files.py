"""Line files: no event is lost, whatever is in the file, and nothing is left of what was erased."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import treering
from treering.core.query import each_ref
from treering.errors import Conflict
from treering.threads.line_files import line_file_name

OLD = [
    json.dumps({"t": 1.0 + n, "iter": n, "agent_id": "a", "role": "agent", "content": f"old {n}"})
    for n in range(3)
]


def contents(path):
    return [json.loads(line).get("content") for line in path.read_text().splitlines()]


def say(log, *words):
    for number, word in enumerate(words):
        log.append("pro", word, iter=number)


@pytest.fixture
def outputs(tmp_path):
    return tmp_path / "outputs"


def file_of(store, thread, namespace=""):
    return line_file_name(thread, namespace, store.space)


@pytest.fixture
def old_file(store, outputs):
    path = outputs / "transcripts" / file_of(store, "debate")
    path.parent.mkdir(parents=True)
    path.write_text("".join(line + "\n" for line in OLD))
    return path


# What is in the file already


def test_lines_of_another_origin_are_continued_and_never_counted_as_ours(store, outputs, old_file):
    say(store.transcript("debate", outputs=outputs), "one", "two", "three", "four")
    assert contents(old_file) == ["old 0", "old 1", "old 2", "one", "two", "three", "four"]
    say(store.transcript("debate", outputs=outputs), "five")
    assert contents(old_file)[3:] == ["one", "two", "three", "four", "five"]


def test_a_session_log_continues_a_file_that_exists(store, tmp_path):
    path = tmp_path / file_of(store, "telegram_1")
    path.write_text('{"role": "user", "content": "of an older bot"}\n')
    log = store.chat("telegram", 1).log(tmp_path)
    assert log.append("user", "hello")
    assert log.append("assistant", "hi")
    assert contents(path) == ["of an older bot", "hello", "hi"]


def test_a_line_added_by_hand_takes_the_place_of_none(store, outputs):
    log = store.transcript("debate", outputs=outputs)
    say(log, "one", "two")
    with log.path.open("a") as file:
        file.write('{"note": "mine"}\n')
    say(log, "three")
    with log.path.open("a") as file:
        file.write('{"note": "mine, without a line feed"}')
    say(store.transcript("debate", outputs=outputs), "four")
    assert contents(log.path) == ["one", "two", None, "three", None, "four"]


@pytest.mark.parametrize("again", [True, False], ids=["another object", "the same object"])
def test_lines_removed_by_hand_are_written_again(store, outputs, again):
    log = store.transcript("debate", outputs=outputs)
    say(log, "one", "two", "three")
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(lines[0] + lines[2])
    say(store.transcript("debate", outputs=outputs) if again else log, "four")
    assert contents(log.path) == ["one", "three", "two", "four"]
    log.path.write_bytes(b"")
    say(log, "five")
    assert contents(log.path) == ["one", "two", "three", "four", "five"]
    log.path.unlink()
    say(log, "six")
    assert contents(log.path) == ["one", "two", "three", "four", "five", "six"]


def test_a_line_changed_in_place_is_noticed(store, outputs):
    log = store.transcript("debate", outputs=outputs)
    say(log, "one", "two")
    status = log.path.stat()
    log.path.write_text(log.path.read_text().replace('"one"', '"eno"'))
    os.utime(log.path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    say(log, "three")
    assert contents(log.path) == ["eno", "two", "one", "three"]


@pytest.mark.parametrize("torn", [b'{"t":17', b'{"t":1.5,"content":"\xff', b"\0" * 5000, b"half a word"])
def test_a_torn_line_is_cut_off(store, outputs, torn):
    log = store.transcript("debate", outputs=outputs)
    say(log, "one")
    with log.path.open("ab") as file:
        file.write(torn)
    say(log, "two")
    assert contents(log.path) == ["one", "two"]


def test_a_long_transcript_is_written_in_pieces(store, outputs):
    log = store.transcript("debate", outputs=outputs)
    words = [str(number) * 200_000 for number in range(8)]
    say(log, *words)
    log.path.write_bytes(log.path.read_bytes()[:-700_000])
    say(store.transcript("debate", outputs=outputs), "last")
    assert contents(log.path) == [*words, "last"]


# Whose file it is


def test_every_namespace_and_tenant_has_a_file_of_its_own(tmp_path, outputs):
    store = treering.open(tmp_path / "store")
    places = [(store, None), (store, "alice"), (store, "bob"), (store.in_namespace("acme"), "alice")]
    for number, (opened, namespace) in enumerate(places):
        say(opened.transcript("debate", namespace, outputs=outputs), f"{number}")
    assert {path.name: contents(path) for path in (outputs / "transcripts").iterdir()} == {
        "debate.jsonl": ["0"],
        "debate@alice.jsonl": ["1"],
        "debate@bob.jsonl": ["2"],
        "debate@alice@acme.jsonl": ["3"],
    }
    store.close()


def test_names_of_files_are_injective_and_short():
    ids = ["t", "t@alice", "t@", "@t", "t/x", "t-x", "t~", "x" * 512, "y" * 512, "x" * 120, "ü", "con"]
    spaces = ["default", "acme", "a" * 120, "b" * 120]
    places = [(id_, namespace, space) for id_ in ids for namespace in ("", *ids) for space in spaces]
    names = {line_file_name(*place).lower() for place in places}
    assert len(names) == len(places)
    assert all(re.fullmatch(r"[A-Za-z0-9_.~@-]{1,200}\.jsonl", name) for name in names)


def test_a_file_is_private(store, outputs):
    log = store.transcript("debate", outputs=outputs)
    say(log, "one")
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_a_pipe_in_its_place_is_refused(store, outputs):
    path = outputs / "transcripts" / file_of(store, "debate")
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(treering.errors.InvalidInput, match="is not a file"):
        say(store.transcript("debate", outputs=outputs), "one")


# Processes


def talk(folder, outputs, who, count):
    with treering.open(folder, durability="fast") as store:
        for number in range(count):
            if number % 10 == 0:
                log = store.transcript("debate", outputs=outputs)
            log.append(who, f"{who} {number}", iter=number)


def test_several_processes_continue_a_file_that_exists(tmp_path, outputs):
    treering.open(tmp_path / "store").close()
    old_file = outputs / "transcripts" / "debate.jsonl"
    old_file.parent.mkdir(parents=True)
    old_file.write_text("".join(line + "\n" for line in OLD))
    context = multiprocessing.get_context("spawn")
    speakers = [context.Process(target=talk, args=(tmp_path / "store", outputs, who, 30)) for who in "abc"]
    for speaker in speakers:
        speaker.start()
    for speaker in speakers:
        speaker.join()
    lines = contents(old_file)
    assert lines[:3] == ["old 0", "old 1", "old 2"]
    with treering.open(tmp_path / "store") as store:
        assert lines[3:] == [event.content for event in store.transcript("debate").read()]
    assert sorted(lines[3:]) == sorted(f"{who} {number}" for who in "abc" for number in range(30))


TALKER = """
import sys, treering
with treering.open(sys.argv[1], durability="fast") as store:
    log = store.transcript("debate", outputs=sys.argv[2])
    for number in range(10**9):
        log.append("pro", f"{number} " + "x" * 5000, iter=number)
        print(number, flush=True)
"""


@pytest.mark.faults
@pytest.mark.parametrize("after", [1, 7, 30])
def test_a_killed_writer_loses_nothing_and_tears_nothing(tmp_path, outputs, after):
    command = [sys.executable, "-c", TALKER, tmp_path / "store", outputs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while int(child.stdout.readline()) < after:
            pass
        child.send_signal(signal.SIGKILL)
        last = max([after, *map(int, child.stdout.read().split())])
    with treering.open(tmp_path / "store") as store:
        log = store.transcript("debate", outputs=outputs)
        log.append("pro", "after", iter=0)
        events = [event.to_dict() for event in log.read()]
        assert [json.loads(line) for line in log.path.read_text().splitlines()] == events
        assert [int(event["content"].split()[0]) for event in events[:-1]][: last + 1] == list(
            range(last + 1)
        )


# Erasing


def erasures():
    return {
        "clean": lambda store: store.thread("debate").clean().kept,
        "delete": lambda store: store.thread("debate").delete().kept,
        "forget": lambda store: store.forget(thread="debate").kept,
        "forget scope": lambda store: store.forget(scope="/thread/debate").kept,
        "transcript": lambda store: store.transcript("debate").delete().kept,
    }


@pytest.mark.parametrize("how", erasures())
def test_erasing_leaves_no_line_behind(store, outputs, tmp_path, how):
    log = store.transcript("debate", outputs=outputs)
    say(log, "secret one", "secret two")
    say(store.transcript("debate", outputs=tmp_path / "second"), "secret three")
    say(store.transcript("other", outputs=outputs), "public")
    assert erasures()[how](store) == {}
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == [file_of(store, "other")]
    assert not any(b"secret" in path.read_bytes() for path in outputs.rglob("*") if path.is_file())
    assert store.verify().ok
    say(log, "anew")
    assert contents(log.path) == ["anew"]
    assert erasures()[how](store) == {}
    assert not log.path.exists()


@pytest.mark.parametrize("how", ["clean", "delete", "forget", "transcript"])
def test_lines_of_another_origin_stay_and_are_named(store, outputs, old_file, how):
    say(store.transcript("debate", outputs=outputs), "secret one", "secret two")
    with old_file.open("ab") as file:
        file.write(b'{"t":1,"content":"secret one, to')
    kept = erasures()[how](store)
    assert kept == {str(old_file): "3 lines in it were not written by this thread"}
    assert old_file.read_text().splitlines() == OLD


def test_deleting_a_chat_takes_its_session_logs_along(store, tmp_path):
    chat = store.chat("telegram", 1)
    chat.log(tmp_path).append("user", "secret")
    chat.reset()
    chat.thread.append({"role": "user", "content": "secret"})
    chat.log(tmp_path).append("user", "secret")
    store.chat("telegram", "1_x").log(tmp_path).append("user", "public")
    assert chat.delete().kept == {}
    assert [path.name for path in tmp_path.glob("*.jsonl")] == [file_of(store, "telegram_1_x")]
    assert [line.content for line in store.chat("telegram", "1_x").log().read()] == ["public"]
    assert store.chat("telegram", 1).log().read() == []


def test_forgetting_a_user_takes_all_files_of_the_user_along(store, outputs):
    for number in range(25):
        say(store.transcript(f"t{number}", "alice", outputs=outputs), "secret")
    say(store.transcript("t1", "bob", outputs=outputs), "public")
    assert store.forget(namespace="alice").kept == {}
    assert [path.name for path in (outputs / "transcripts").glob("*.jsonl")] == [file_of(store, "t1", "bob")]


def test_a_fork_that_is_erased_with_its_origin_loses_its_file_too(store, outputs):
    thread = store.thread("debate")
    thread.append("hello")
    thread.fork("debate/2")
    store.thread("apart").append("hello")
    for name in ("debate", "debate/2", "apart"):
        say(store.transcript(name, outputs=outputs), "words")
    before = sorted(path.read_bytes() for path in outputs.rglob("*.jsonl"))
    for erase in (thread.delete, thread.clean, lambda: store.forget(thread="debate")):
        with pytest.raises(Conflict):
            erase()
        assert sorted(path.read_bytes() for path in outputs.rglob("*.jsonl")) == before
    thread.delete(cascade=True)
    assert [path.name for path in outputs.rglob("*.jsonl")] == [file_of(store, "apart")]


def test_a_file_on_another_machine_is_named(store, outputs, monkeypatch):
    monkeypatch.setattr("treering.threads.line_files.host_name", lambda: "far-away")
    log = store.transcript("debate", outputs=outputs)
    say(log, "secret")
    moved = log.path.rename(outputs / "elsewhere")
    monkeypatch.undo()
    receipt = store.forget(thread="debate")
    assert receipt.kept == {str(log.path): "it was written on host 'far-away'; delete it there"}
    assert moved.exists()


def test_a_container_that_restarts_under_another_name_finds_its_files(store, outputs, monkeypatch):
    monkeypatch.setattr("treering.threads.line_files.host_name", lambda: "3f2a9c")
    log = store.transcript("debate", outputs=outputs)
    say(log, "secret")
    monkeypatch.undo()
    assert store.forget(thread="debate").kept == {}
    assert not log.path.exists()


def test_a_file_that_cannot_be_touched_is_named(store, outputs, tmp_path):
    log = store.transcript("debate", outputs=outputs)
    say(log, "secret")
    log.path.rename(tmp_path / "moved")
    log.path.symlink_to(tmp_path / "moved")
    ((path, why),) = store.thread("debate").clean().kept.items()
    assert path == str(log.path)
    assert "remove its lines by hand" in why
    assert contents(tmp_path / "moved") == ["secret"]


def test_removing_checkpoints_or_collecting_garbage_leaves_the_transcript(store, outputs):
    thread = store.thread("debate")
    for number in range(3):
        thread.append(f"{number}")
    log = store.transcript("debate", outputs=outputs)
    say(log, "stays")
    thread.clean(delete_transcript=False)
    store.gc(keep=treering.Keep(last=1), keep_runs=treering.Keep(last=1), grace_seconds=0)
    assert contents(log.path) == ["stays"]
    assert len(log.read()) == 1
    assert thread.clean(delete_checkpoint=False).transcript_events == 1
    assert not log.path.exists()


def test_the_store_remembers_a_file_once_and_forgets_it_with_the_thread(store, outputs):
    for _ in range(3):
        say(store.transcript("debate", outputs=outputs), "one")
    assert len(list(each_ref(store.engine, store.space, "file/"))) == 1
    store.thread("debate").clean()
    assert not list(each_ref(store.engine, store.space, "file/"))


ERASER = """
import sys, treering
with treering.open(sys.argv[1], durability="fast") as store:
    for _ in range(40):
        store.thread("debate").clean()
"""


@pytest.mark.faults
def test_what_is_said_while_it_is_erased_is_either_in_journal_and_file_or_in_neither(tmp_path, outputs):
    treering.open(tmp_path / "store").close()
    eraser = subprocess.Popen([sys.executable, "-c", ERASER, tmp_path / "store"])
    with treering.open(tmp_path / "store", durability="fast") as store:
        log = store.transcript("debate", outputs=outputs)
        while eraser.poll() is None:
            log.append("pro", f"{time.time_ns()}", iter=0)
        assert eraser.returncode == 0
        log.append("pro", "last", iter=0)
        assert contents(log.path) == [event.content for event in log.read()]
        store.thread("debate").clean()
        assert not log.path.exists()
