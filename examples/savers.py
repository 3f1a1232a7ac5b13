"""A process that saves a conversation to files is killed and resumed; then the files are migrated to SQLite.

    python examples/savers.py

A child process saves a growing conversation with `FileSaver` and is killed with SIGKILL. Every acknowledged
save is still there, and a second process continues. Then the whole history is migrated to `SqliteSaver`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from treering.compat.savers import FileSaver, SqliteSaver, migrate_checkpoints

THREAD = "conversation-1"
KILL_AFTER = 12
STEPS = 30


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="treering-savers-") as folder:
        files = Path(folder) / "checkpoints"
        acknowledged = talk(files, kill_after=KILL_AFTER)
        saver = FileSaver(files)
        kept = saver.load(THREAD)
        print(f"{acknowledged} messages were acknowledged, then kill -9; found {len(kept.messages)}")
        if len(kept.messages) < acknowledged:
            raise SystemExit("FAILED: something acknowledged is missing")

        talk(files)
        newest = saver.load(THREAD)
        print(f"another process continued: {len(newest.messages)} messages, step {newest.step}")

        asked = saver.interrupt(THREAD, {"tool": "send_mail"})
        saver.resume(THREAD, "approve", interrupt_id=asked.pending_interrupt["id"])

        with SqliteSaver(Path(folder) / "store") as database:
            report = migrate_checkpoints(source=saver, destination=database)
            same = [each.to_dict() for each in database.list(THREAD)] == [
                each.to_dict() for each in saver.list(THREAD)
            ]
            print(
                f"migrated {report.checkpoints} checkpoints of {report.threads} thread, all the same: {same}"
            )
            if not (report.ok and same):
                raise SystemExit("FAILED: the histories differ")


def talk(files: Path, kill_after: int | None = None) -> int:
    """Let a child process save messages; return how many saves were acknowledged."""
    command = [sys.executable, __file__, "child", str(files)]
    acknowledged = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            acknowledged = int(line)
            if acknowledged == kill_after:
                os.kill(child.pid, signal.SIGKILL)
    return acknowledged


def child(files: Path) -> None:
    saver = FileSaver(files)
    newest = saver.load(THREAD)
    messages = [] if newest is None else newest.messages
    while len(messages) < STEPS:
        messages.append({"role": "user", "content": f"message {len(messages)}"})
        saver.save(thread_id=THREAD, messages=messages)
        print(len(messages), flush=True)


if __name__ == "__main__":
    child(Path(sys.argv[2])) if sys.argv[1:2] == ["child"] else main()
