"""deepagents on a workspace: a real deep agent, and its own backend as the judge of ours."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, FilesystemBackend, StateBackend
from deepagents.middleware.filesystem import FilesystemPermission
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

import treering
from tests.adapters.langgraph.scripts import Scripted, config
from treering.adapters.deepagents import TreeringBackend
from treering.adapters.langgraph import TreeringSaver
from treering.errors import InvalidInput


class Clerk(Scripted):
    """Calls the tools that it is told to, one a turn, and then says what the last one answered."""

    calls: list[tuple[str, dict[str, Any]]]

    def _generate(self, messages, stop=None, run_manager=None, **kwargs: Any) -> ChatResult:  # noqa: ARG002
        done = [message for message in messages if isinstance(message, ToolMessage)]
        if len(done) < len(self.calls):
            name, args = self.calls[len(done)]
            call = {"name": name, "args": args, "id": f"call-{len(done)}", "type": "tool_call"}
            answer = AIMessage(content="", tool_calls=[call])
        else:
            answer = AIMessage(content=str(done[-1].content))
        return ChatResult(generations=[ChatGeneration(message=answer)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def backend(root: Path):
    with TreeringBackend(root) as opened:
        yield opened


CALLS = [
    ("write_file", {"file_path": "/notes/plan.md", "content": "# Plan\n- call Bob\n"}),
    ("edit_file", {"file_path": "/notes/plan.md", "old_string": "Bob", "new_string": "Alice"}),
    ("ls", {"path": "/notes"}),
    ("glob", {"pattern": "**/*.md"}),
    ("grep", {"pattern": "Alice", "output_mode": "content"}),
    ("read_file", {"file_path": "/host/documents/report.md"}),
    ("write_file", {"file_path": "/host/documents/new.md", "content": "x"}),
    ("read_file", {"file_path": "/../outside.txt"}),
    ("read_file", {"file_path": "/notes/plan.md"}),
]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_deep_agent_works_in_a_workspace(root: Path, tmp_path: Path, is_async) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "report.md").write_text("# Sales\n")
    (tmp_path / "outside.txt").write_text("secret")
    with (
        treering.open(tmp_path / "store") as store,
        TreeringBackend(root, mounts={"host/documents": (tmp_path / "documents", "ro")}) as backend,
    ):
        agent = create_deep_agent(
            model=Clerk(calls=CALLS), backend=backend, checkpointer=TreeringSaver(store)
        )
        asked = {"messages": [HumanMessage("go")]}
        state = asyncio.run(agent.ainvoke(asked, config())) if is_async else agent.invoke(asked, config())
        output = [str(each.content) for each in state["messages"] if isinstance(each, ToolMessage)]
        snapshot = store.workspace.snapshot(root)
        assert [each.path for each in store.workspace.ls(snapshot, recursive=True)] == [
            "notes",
            "notes/plan.md",
        ]
    assert (root / "notes" / "plan.md").read_text() == "# Plan\n- call Alice\n"
    assert "/notes/plan.md" in output[2]
    assert "/notes/plan.md" in output[3]
    assert "- call Alice" in output[4]
    assert "# Sales" in output[5]
    assert "read-only" in output[6]
    assert not (tmp_path / "documents" / "new.md").exists()
    assert "secret" not in output[7]
    assert "- call Alice" in state["messages"][-1].content
    assert str(tmp_path) not in "".join(output)


def test_permission_rules_hold_through_links(root: Path, backend: TreeringBackend) -> None:
    """Deepagents' rules go by path; a link would be a second path to what they deny."""
    (root / "private").mkdir()
    (root / "private" / "key.txt").write_text("the secret")
    (root / "open").symlink_to("private")
    (root / "also.txt").symlink_to("private/key.txt")
    deny = FilesystemPermission(operations=["read"], paths=["/private/**"], mode="deny")
    for path in ("/private/key.txt", "/open/key.txt", "/also.txt"):
        agent = create_deep_agent(
            model=Clerk(calls=[("read_file", {"file_path": path})]), backend=backend, permissions=[deny]
        )
        state = agent.invoke({"messages": [HumanMessage("go")]})
        assert "the secret" not in state["messages"][-1].content, path
    assert backend.grep("the secret").matches == [
        {"path": "/private/key.txt", "line": 1, "text": "the secret"}
    ]


def test_it_stands_behind_a_route(root: Path, backend: TreeringBackend) -> None:
    both = CompositeBackend(default=StateBackend(), routes={"/work/": backend})
    assert both.write("/work/a.txt", "hi").error is None
    assert (root / "a.txt").read_text() == "hi"
    assert [each["path"] for each in both.glob("*.txt", "/work/").matches] == ["/work/a.txt"]


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_grep_shows_lines_around_a_match_as_deepagents_own_backend_does(root, backend, count):
    (root / "a.txt").write_text("zero\none Alice\ntwo\nthree\nfour Alice\nfive Alice\nsix\nseven")
    (root / "b").mkdir()
    (root / "b" / "c.txt").write_text("Alice\r\nlast\r\n")
    own = FilesystemBackend(root_dir=root, virtual_mode=True)

    def found(result):
        assert result.error is None
        return sorted(result.matches, key=lambda each: (each["path"], each["line"]))

    theirs = found(own.grep("Alice", context_lines=count))
    assert found(backend.grep("Alice", context_lines=count)) == theirs
    assert found(asyncio.run(backend.agrep("Alice", context_lines=count))) == theirs
    assert all(("context_before" in each) == bool(count) for each in theirs)
    first = backend.grep("Alice", "/a.txt", max_count=1, context_lines=2)
    assert first.truncated
    assert [each["text"] for each in first.matches[0]["context_after"]] == ["two", "three"]
    with pytest.raises(InvalidInput, match="use 0 or more"):
        backend.grep("Alice", context_lines=-1)


def test_no_escape(root: Path, backend: TreeringBackend, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    (root / "link").symlink_to(tmp_path)
    (root / "file").symlink_to(tmp_path / "outside.txt")
    for path in (
        "/../outside.txt",
        "../outside.txt",
        "/link/outside.txt",
        "/file",
        "/a/../../outside.txt",
        "\0",
    ):
        assert backend.read(path).error is not None
        assert backend.edit(path, "secret", "x").error is not None
        assert backend.download_files([path])[0].content is None
    for path in ("/../new.txt", "/link/new.txt", "/file"):
        assert backend.write(path, "x").error is not None
        assert backend.upload_files([(path, b"x")])[0].error in {"invalid_path", "permission_denied"}
        assert backend.delete("/link/outside.txt").error is not None
    assert (tmp_path / "outside.txt").read_text() == "secret"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["outside.txt", "work"]
    assert backend.grep("secret").matches == []


def test_what_is_no_text(root: Path, backend: TreeringBackend) -> None:
    (root / "a.bin").write_bytes(b"\x00\xff\x01")
    (root / "p.png").write_bytes(b"plain words")
    (root / "empty.txt").write_text("")
    assert backend.read("/a.bin").file_data == {"content": "AP8B", "encoding": "base64"}
    assert backend.read("/p.png").file_data["encoding"] == "base64"
    assert "empty" in backend.read("/empty.txt").file_data["content"]
    assert backend.read("/").error == "File '/' not found"
    os.mkfifo(root / "pipe")
    assert backend.read("/pipe").error is not None
    assert [each["path"] for each in backend.ls("/").entries] == ["/a.bin", "/empty.txt", "/p.png"]


def test_a_huge_file_is_read_by_lines(root: Path, backend: TreeringBackend) -> None:
    with (root / "huge.log").open("w") as file:
        for number in range(2_200_000):
            file.write(f"line {number}\n")
    window = backend.read("/huge.log", offset=2_000_000, limit=2)
    assert window.file_data["content"] == "line 2000000\nline 2000001\n"
    assert (window.start_line, window.end_line, window.next_offset) == (2_000_001, 2_000_002, 2_000_002)
    last = backend.read("/huge.log", offset=2_199_999, limit=5)
    assert (last.file_data["content"], last.next_offset) == ("line 2199999\n", None)
    assert backend.read("/huge.log", offset=3_000_000).error is not None
    with (root / "sparse.bin").open("wb") as file:
        file.truncate(2 << 30)
    assert backend.download_files(["/sparse.bin"])[0].content is None


def test_many_files_at_once(backend: TreeringBackend) -> None:
    async def main() -> None:
        replies = await backend.aupload_files([("/a/x.txt", b"1"), ("/b.bin", b"\xff")])
        assert [each.error for each in replies] == [None, None]
        found = await backend.adownload_files(["/a/x.txt", "/a", "/none", "/b.bin"])
        assert [(each.content, each.error) for each in found] == [
            (b"1", None), (None, "is_directory"), (None, "file_not_found"), (b"\xff", None),
        ]  # fmt: skip
        assert (await backend.als("/")).entries[0]["path"] == "/a/"
        assert (await backend.aread("/a/x.txt")).file_data["content"] == "1"
        assert (await backend.awrite("/c.txt", "one one")).path == "/c.txt"
        assert (await backend.aedit("/c.txt", "one", "two", replace_all=True)).occurrences == 2
        assert len((await backend.agrep("two")).matches) == 1
        assert len((await backend.aglob("*.txt")).matches) == 2
        assert (await backend.adelete("/a")).path == "/a"

    asyncio.run(main())


NAMES = st.sampled_from(["a.txt", "b.py", "d", "d/c.txt", "d/e/f.py", ".env", "none", "d/.hid/g.txt"])
PATHS = NAMES.map(lambda name: f"/{name}")
TEXTS = st.sampled_from(["", " \n", "one\ntwo\nthree", "one one\n", "x\r\ny\r\n", "ü one\n\n\nlast", "two"])
PIECES = st.sampled_from(["one", "two", "e\nt", "x\r\ny", "", "last\n", "zzz"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PATHS, TEXTS),
        st.tuples(st.just("edit"), PATHS, PIECES, PIECES, st.booleans()),
        st.tuples(st.just("read"), PATHS, st.integers(-1, 4), st.integers(-1, 3)),
        st.tuples(st.just("ls"), st.sampled_from(["/", "/d", "/a.txt", "/none", "/d/"])),
        st.tuples(
            st.just("glob"),
            st.sampled_from(["*.txt", "**/*.py", "/*.txt", "d/**", "*", ".*", "{a,b}.*", "../x"]),
            st.sampled_from([None, "/", "/d", "/none"]),
        ),
        st.tuples(
            st.just("grep"),
            st.sampled_from(["one", "t", "zzz"]),
            st.sampled_from([None, "/", "/d"]),
            st.sampled_from([None, "*.py", "**/*.txt", "d/*"]),
        ),
        st.tuples(st.just("delete"), PATHS),
    ),
    max_size=12,
)


@settings(max_examples=80)
@given(STEPS)
def test_it_answers_as_deepagents_own_backend_does(tmp_path_factory, steps) -> None:
    tmp_path = tmp_path_factory.mktemp("judge")
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    theirs = FilesystemBackend(tmp_path / "theirs", virtual_mode=True)
    with TreeringBackend(tmp_path / "ours") as ours:
        for verb, *args in steps:
            got, wanted = getattr(ours, verb)(*args), getattr(theirs, verb)(*args)
            assert comparable(got) == comparable(wanted), (verb, args)


def comparable(result: Any) -> dict[str, Any]:
    """What has to be equal: times differ, and errors of the system are put into other words."""
    output = dict(vars(result))
    if re.match("Error (writing|editing|reading|deleting)", output.get("error") or ""):
        output["error"] = "of the system"
    for name in ("entries", "matches"):
        if output.get(name) is not None:
            output[name] = sorted(
                (
                    {key: value for key, value in each.items() if key != "modified_at"}
                    for each in output[name]
                ),
                key=str,
            )
    return output
