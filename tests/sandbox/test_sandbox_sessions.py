"""Sessions of sandboxes: taking one up again, its log, holding and ending what runs in it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from pathlib import Path

import pytest

from tests.sandbox.conftest import SCRIBBLER
from treering.errors import InvalidInput, NotFound
from treering.sandbox import (
    AsyncSandbox,
    Sandbox,
    StorageConfig,
)


def log_of(sandbox: Sandbox) -> list[dict]:
    assert sandbox.log_path is not None
    return [json.loads(line) for line in sandbox.log_path.read_bytes().splitlines()]


def until(path: Path) -> None:
    """Wait for a file that another process makes; the test's own time limit ends it."""
    while not path.exists():
        time.sleep(0.005)


def test_a_session_can_be_continued(storage: StorageConfig) -> None:
    first = Sandbox(SCRIBBLER, storage=storage, session_tag_prefix="my-project")
    made = first.run("write a.txt 1")
    tag, session = first.get_session_tag(), first.get_session()
    first.close()
    again = Sandbox(SCRIBBLER, storage=storage, session=session)
    result = again.run("read a.txt")
    assert (result.text, result.sandbox_id) == ("1", made.sandbox_id)
    assert result.checkpoint.parent_id is None  # a session that was set begins a lineage of its own
    assert again.get_session_tag() != tag
    again.kill()
    with pytest.raises(NotFound, match="not found on this machine"):
        again.set_session(session)
    with pytest.raises(InvalidInput, match="'sbx_'"):
        again.set_session("../etc")
    again.close()


def test_a_missing_session_is_reported_once() -> None:
    with (
        pytest.raises(NotFound, match="not found on this machine"),
        Sandbox(SCRIBBLER, session=f"sbx_{'0' * 26}") as sandbox,
    ):
        sandbox.run("asked")


def test_set_session_resets_lineage_tag_and_log(storage: StorageConfig) -> None:
    one, two = Sandbox(SCRIBBLER, storage=storage), Sandbox(SCRIBBLER, storage=storage)
    one.run("write a.txt one")
    two.run("write a.txt two")
    log, tag, other = one.log_path, one.get_session_tag(), two.get_session()
    two.close()
    one.set_session(other)
    assert json.loads(log.read_bytes().splitlines()[-1]).keys() == {"_sessionEnd"}
    result = one.run("read a.txt")
    assert (result.text, result.checkpoint.parent_id) == ("two", None)
    assert one.get_session_tag() != tag
    assert one.log_path != log
    one.kill()
    one.close()


def test_the_session_log(tmp_path: Path) -> None:
    sandbox = Sandbox(SCRIBBLER, model="m-9", session_tag_prefix="my-prefix")
    assert (sandbox.get_session_tag(), sandbox.get_session_timestamp()) == (None, None)
    sandbox.run("write a.txt 1")
    tag = sandbox.get_session_tag()
    assert re.fullmatch(r"my-prefix-[0-9a-f]{16}", tag)
    path, began = sandbox.log_path, sandbox.get_session_timestamp()
    assert path.parent == tmp_path / "treering-home" / "sessions"
    stamp = began.replace(":", "-").replace(".", "-")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", began)
    assert path.name == f"{tag}_local_{sandbox.get_session()}_scribbler_{stamp}.jsonl"
    run = sandbox.run("shout", background=True)
    sandbox.pause()
    sandbox.resume()
    output = sandbox.wait().output
    assert run.sandbox_id in path.name
    lines = path.read_bytes().splitlines()
    meta, prompt, *_ = map(json.loads, lines)
    assert meta == {
        "_meta": {
            "tag": tag,
            "provider": "local",
            "agent": "scribbler",
            "model": "m-9",
            "sandbox_id": sandbox.get_session(),
            "timestamp": began,
        }
    }
    assert prompt == {"_prompt": {"text": "write a.txt 1"}}
    reported = [json.loads(line) for line in lines]
    assert [each["_prompt"]["text"] for each in reported if "_prompt" in each] == ["write a.txt 1", "shout"]
    assert sum("_meta" in each for each in reported) == 1
    payloads = [
        line for line in output.encode().splitlines() if line.startswith(b"{") and b"_meta" not in line
    ]
    assert len(payloads) == 4
    assert all(line in lines for line in payloads)  # byte for byte
    assert {"_stdout": "not json at all"} in reported
    assert {"_stderr": "on stderr"} in reported
    assert "_sessionEnd" not in reported[-1]
    sandbox.kill()
    assert json.loads(path.read_bytes().splitlines()[-1]).keys() == {"_sessionEnd"}
    sandbox.run("write a.txt 1")
    assert sandbox.log_path != path
    assert sandbox.get_session_tag() != tag
    sandbox.kill()
    sandbox.close()


def test_a_command_is_logged_as_a_command_and_a_run_as_a_prompt() -> None:
    with Sandbox(SCRIBBLER) as sandbox:
        sandbox.run("write a.txt 1")
        sandbox.execute(["sh", "-c", "echo hi there"])
        path = sandbox.log_path
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [each["_prompt"]["text"] for each in lines if "_prompt" in each] == ["write a.txt 1"]
    (command,) = [each["_command"] for each in lines if "_command" in each]
    assert command == {"text": "sh -c 'echo hi there'", "words": ["sh", "-c", "echo hi there"]}


@pytest.mark.parametrize("prefix", ["x" * 36, "a-customer_with.a-long.name" * 4])
def test_a_log_is_named_as_documented_however_long_its_tag(prefix: str) -> None:
    with Sandbox(SCRIBBLER, session_tag_prefix=prefix) as sandbox:
        sandbox.run("write a.txt 1")
        tag = sandbox.get_session_tag()
        assert re.fullmatch(
            re.escape(f"{tag}_local_{sandbox.get_session()}_{SCRIBBLER.name}_")
            + r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z\.jsonl",
            sandbox.log_path.name,
        )
        sandbox._session.flush()
        assert log_of(sandbox)[0]["_meta"]["tag"] == tag


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sandbox = Sandbox(SCRIBBLER, sessions_folder=tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert sandbox.run("write a.txt 1").exit_code == 0
    sandbox.kill()
    sandbox.close()


def test_pause_holds_the_program_and_kill_ends_it() -> None:
    sandbox = Sandbox(SCRIBBLER)
    with pytest.raises(InvalidInput, match="to pause"):
        sandbox.pause()
    sandbox.run("sleep 60", background=True)
    until(sandbox.workspace / "started")
    with pytest.raises(InvalidInput, match="still active"):
        sandbox.run("write a.txt 1")
    pid = sandbox._running.program._process.pid
    sandbox.pause()
    while (state := _state(pid)) != "T":
        time.sleep(0.005)
    assert state == "T"
    sandbox.resume()
    while _state(pid) == "T":
        time.sleep(0.005)
    sandbox.pause()
    folder = sandbox.home.parent
    process = sandbox._running.program._process
    sandbox.kill()  # also while it is held
    assert process.poll() == -signal.SIGTERM
    assert not folder.exists()
    sandbox.kill()
    sandbox.close()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_killing_ends_a_run_in_the_foreground() -> None:
    async def main() -> None:
        async with AsyncSandbox(SCRIBBLER) as sandbox:
            await sandbox.start()
            workspace = sandbox._sandbox.workspace
            running = asyncio.create_task(sandbox.run("sleep 60"))
            await asyncio.to_thread(until, workspace / "started")
            await sandbox.kill()
            result = await running
            assert result.exit_code == -signal.SIGTERM

    asyncio.run(main())
