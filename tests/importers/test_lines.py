"""Lines that cannot be read are skipped, counted and named by every importer; a strict one refuses them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import treering
from treering.errors import Busy, InvalidInput
from treering.importers.lines import BadLines, raw_lines
from treering.importers.registry import IMPORTERS, importer, load_function

FIXTURES = Path(__file__).parent / "fixtures"
SAID = {
    "role": "user",
    "content": "hi",
    "ts": "2026-02-24T14:30:00+00:00",
    "channel": "telegram",
    "user_id": "7",
}
EVENT = {"t": 10.5, "iter": 0, "agent_id": "pro", "role": "agent", "content": "Yes."}
LOGGED = {"timestamp": "2025-09-03T09:00:00Z", "message": "done", "run_id": "r-1"}
META = {
    "tag": "evolve-1",
    "provider": "e2b",
    "agent": "qwen",
    "sandbox_id": "sbx",
    "timestamp": "2025-10-26T20:15:17Z",
}


def jsonl(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def claude_code(folder):
    shutil.copytree(FIXTURES / "claude-code/projects/-home-ada-shop", folder / "-home-ada-shop")
    return folder, next((folder / "-home-ada-shop").glob("*.jsonl"))


def codex(folder):
    folder.mkdir()
    path = Path(shutil.copy(next((FIXTURES / "codex").rglob("rollout-*.jsonl")), folder))
    return folder, path


def history(folder):
    from tests.importers.jsonl_histories import exported, grow

    folder.mkdir()
    with treering.open("memory:") as store:
        (folder / "all.jsonl").write_bytes(exported(grow(store)))
    return folder / "all.jsonl", folder / "all.jsonl"


def export(name: str):
    def write(folder: Path) -> tuple[Path, Path]:
        folder.mkdir()
        copy = folder / name
        copy.write_bytes((FIXTURES / "traces" / name).read_bytes())
        return copy, copy

    return write


SOURCES = {
    "langfuse": export("langfuse.jsonl"),
    "phoenix": export("phoenix.jsonl"),
    "otlp": export("openinference.jsonl"),
    "claude-code": claude_code,
    "codex": codex,
    "jsonl": history,
    "agentry": lambda folder: (folder, jsonl(folder / "transcripts/debate.jsonl", EVENT, EVENT)),
    "orchestrator-log": lambda folder: (folder, jsonl(folder / "app.jsonl", LOGGED, LOGGED)),
    "evolve": lambda folder: (
        folder,
        jsonl(folder / "s.jsonl", {"_meta": META}, {"_prompt": "hi"}, {"_sessionEnd": {}}),
    ),
    "ciana": lambda folder: (folder, jsonl(folder / "sessions/telegram_7.jsonl", SAID, SAID)),
}


def test_every_importer_of_lines_is_tried():
    """The rows of LangGraph's databases are damaged in its own tests."""
    assert SOURCES.keys() == {each.name for each in IMPORTERS} - {"langgraph"}


@pytest.mark.parametrize(
    "damage", [b"nonsense", b"[1]", b"\xff\x00", b"[" * 50_000], ids=["text", "array", "bytes", "deep"]
)
@pytest.mark.parametrize("name", SOURCES)
def test_a_bad_line_is_skipped_counted_and_named(name, damage, tmp_path):
    source, path = SOURCES[name](tmp_path / "source")
    if name == "evolve" and damage == b"[1]":
        pytest.skip("Evolve logs any JSON as the output of the agent")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damage + b"\n", *lines[1:]]))
    work = load_function(importer(name).function)
    with treering.open("memory:") as store, treering.open("memory:") as whole:
        with pytest.raises(InvalidInput, match=rf"nothing was imported.*\n.*{path.name} line 2: "):
            work(source, store, strict=True)
        assert store.stats().rows["events"] == 0
        would = work(source, store, dry_run=True)
        report = work(source, store)
        assert would.bad == report.bad
        assert [f"{path.name} line 2: " in each for each in report.bad] == [True]
        assert sum(each.left_out for each in report.files) == 1
        path.write_bytes(b"".join(lines))
        assert work(source, whole, strict=True).new == report.new


class TestBadLines:
    def test_of_many_the_first_thousand_are_named(self):
        bad = BadLines()
        for number in range(1500):
            with bad.skipping("a.jsonl", number):
                raise ValueError("odd")
        assert bad.count == 1500
        assert (len(bad.named), bad.named[0], bad.named[-1]) == (1001, "a.jsonl line 0: odd", "and 500 more")

    def test_a_long_reason_is_one_short_line(self):
        bad = BadLines()
        with bad.skipping("row 1"):
            raise InvalidInput("so\n  long " + "x" * 5000)
        assert bad.named[0].startswith("row 1: so long xxx")
        assert len(bad.named[0]) < 400

    def test_errors_of_the_store_are_not_bad_lines(self):
        bad = BadLines()
        with pytest.raises(Busy), bad.skipping("a.jsonl", 1):
            raise Busy("the store is locked")
        assert bad.count == 0


class TestRawLines:
    def lines(self, tmp_path, data, **options):
        (tmp_path / "a.jsonl").write_bytes(data)
        return [(each.number, each.text, each.is_torn) for each in raw_lines(tmp_path / "a.jsonl", **options)]

    def test_blank_lines_count_and_are_not_read(self, tmp_path):
        assert self.lines(tmp_path, b"\n1\r\n  \n2\n") == [(2, b"1", False), (4, b"2", False)]

    def test_a_torn_last_line_waits(self, tmp_path):
        assert self.lines(tmp_path, b'1\n{"a') == [(1, b"1", False)]
        assert self.lines(tmp_path, b'1\n{"a', with_torn=True) == [(1, b"1", False), (2, b'{"a', True)]
        assert self.lines(tmp_path, b'1\n{"a": 1}') == [(1, b"1", False), (2, b'{"a": 1}', False)]

    def test_only_up_to_the_size_that_was_read_before(self, tmp_path):
        assert self.lines(tmp_path, b'1\n{"a": 1}\n3\n', size=5) == [(1, b"1", False)]
        assert self.lines(tmp_path, b"1\n2\n3\n", size=4) == [(1, b"1", False), (2, b"2", False)]

    def test_a_byte_order_mark_is_not_part_of_the_first_line(self, tmp_path):
        assert self.lines(tmp_path, b"\xef\xbb\xbf1\n") == [(1, b"1", False)]
