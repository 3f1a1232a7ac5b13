"""Anthropic's memory tool on a store, against the SDK's own tool for local files."""

from __future__ import annotations

import asyncio
import re
from random import Random

import pytest
from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

import treering
from treering.adapters.claude.memory_tool import AsyncTreeringMemoryTool, TreeringMemoryTool

NAMES = ["a", "b.md", "c d", ".hidden", "ä", "..", ".", "", "100%", "a\nb"]
TEXTS = ["", "one", "one\ntwo\nthree\n", "x" * 1025, "ä\r\nb", "one one\n\none", "\n\n"]
WORDS = ["one", "two", "x", "", "\n", "nothing", "ä"]


def _path(random):
    root = random.choices(["/memories", "/memories/", "/memoriesx", "/tmp", "memories"], [20, 4, 1, 1, 1])[0]
    parts = random.choices(NAMES, [6, 6, 3, 1, 2, 1, 1, 1, 1, 1], k=random.randint(0, 3))
    return root + "".join(f"/{part}" for part in parts)


def _command(random):
    kind = random.choices(
        ["view", "create", "str_replace", "insert", "delete", "rename"], [5, 6, 4, 3, 2, 3]
    )[0]
    command = {"command": kind, "path": _path(random)}
    if kind == "view" and random.random() < 0.4:
        command["view_range"] = [random.randint(-1, 4), random.choice([-1, 0, 1, 2, 9])]
    if kind == "create":
        command["file_text"] = random.choice(TEXTS)
    if kind == "str_replace":
        command |= {"old_str": random.choice(WORDS), "new_str": random.choice(WORDS)}
    if kind == "insert":
        command |= {"insert_line": random.randint(-1, 4), "insert_text": random.choice(TEXTS)}
    if kind == "rename":
        command = {"command": kind, "old_path": _path(random), "new_path": _path(random)}
    return command


def _reply(tool, command):
    try:
        return "ok", re.sub(r"(?m)^[0-9.]+[BKMG]\t(.*/|/memories[^\t]*)$", r"\1", tool.call(command))
    except ToolError as error:
        return "refused", str(error)
    except OSError:
        return "refused", None  # the SDK's tool lets some of the file system's errors through


def _same(ours, theirs):
    return ours == theirs or (theirs == ("refused", None) and ours[0] == "refused")


@pytest.mark.parametrize("seed", range(12))
def test_all_commands_reply_as_the_sdks_own_tool(seed, tmp_path):
    random = Random(seed)
    theirs = BetaLocalFilesystemMemoryTool(str(tmp_path))
    done = 0
    with treering.open("memory:") as store:
        ours = TreeringMemoryTool(store)
        for _ in range(150):
            command = _command(random)
            wanted, got = _reply(theirs, command), _reply(ours, command)
            assert _same(got, wanted), (command, got, wanted)
            done += wanted[0] == "ok"
    assert done > 20


def test_file_sizes_are_formatted_like_the_sdks(tmp_path):
    theirs = BetaLocalFilesystemMemoryTool(str(tmp_path))
    with treering.open("memory:") as store:
        ours = TreeringMemoryTool(store)
        for number, size in enumerate([0, 1, 1023, 1024, 1025, 1536, 10_000, 1 << 20, 1_500_000]):
            for tool in (ours, theirs):
                tool.call({"command": "create", "path": f"/memories/{number}", "file_text": "x" * size})
        view = {"command": "view", "path": "/memories"}
        assert ours.call(view).splitlines()[2:] == theirs.call(view).splitlines()[2:]


def test_files_are_documents_with_versions_and_search():
    with treering.open("memory:") as store:
        tool = TreeringMemoryTool(store, namespace="alice")
        tool.call({"command": "create", "path": "/memories/tone.md", "file_text": "likes walnuts"})
        tool.call(
            {"command": "str_replace", "path": "/memories/tone.md", "old_str": "walnuts", "new_str": "plums"}
        )
        memory = store.memory.in_namespace("alice")
        assert [each.document.content for each in memory.history("memories/tone.md")] == [
            "likes plums",
            "likes walnuts",
        ]
        assert [each.id for each in memory.search("plums").documents] == ["memories/tone.md"]
        memory.restore("memories/tone.md", 1)
        assert "likes walnuts" in tool.call({"command": "view", "path": "/memories/tone.md"})
        assert tool.clear_all_memory() == "All memory cleared"
        assert memory.query() == []


def test_invalid_input_is_reported_to_the_model():
    with treering.open("memory:") as store:
        tool = TreeringMemoryTool(store)
        for command in (
            {"command": "create", "path": "/memories/" + "x" * 600, "file_text": ""},
            {"command": "create", "path": "/memories/a\x00b", "file_text": ""},
            {"command": "create", "path": "/memories/big", "file_text": "x" * (20 * 1024 * 1024)},
            {"command": "view", "path": "/memories/../../etc/passwd"},
        ):
            with pytest.raises(ToolError):
                tool.call(command)
        assert store.memory.query() == []


def test_the_same_awaited(tmp_path):
    async def scene():
        tool = AsyncTreeringMemoryTool(tmp_path / "store")
        await tool.call({"command": "create", "path": "/memories/d/a", "file_text": "one\n"})
        await tool.call(
            {"command": "insert", "path": "/memories/d/a", "insert_line": 1, "insert_text": "two"}
        )
        await tool.call({"command": "str_replace", "path": "/memories/d/a", "old_str": "one", "new_str": "1"})
        await tool.call({"command": "rename", "old_path": "/memories/d", "new_path": "/memories/e"})
        shown = await tool.call({"command": "view", "path": "/memories/e/a"})
        assert shown.splitlines()[1:] == ["     1\t1", "     2\ttwo", "     3\t"]
        with pytest.raises(ToolError, match="already exists"):
            await tool.call({"command": "create", "path": "/memories/e", "file_text": ""})
        await tool.call({"command": "delete", "path": "/memories/e"})
        assert await tool.clear_all_memory() == "All memory cleared"
        assert tool.to_dict() == {"type": "memory_20250818", "name": "memory"}
        await tool.aclose()

    asyncio.run(scene())
