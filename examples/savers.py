"""A conversation in files is killed while it is saved, goes on, and then moves into a database.

    python examples/savers.py

A child process saves a growing conversation with `FileSaver` and is killed with SIGKILL. What it was told is
saved is there; a second process goes on. Then the whole history is migrated to `SqliteSaver`.
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
        told = talk(files, kill_after=KILL_AFTER)
        saver = FileSaver(files)
        kept = saver.load(THREAD)
        print(f"told that {told} messages are saved, then kill -9; found {len(kept.messages)}")
        if len(kept.messages) < told:
            raise SystemExit("FAILED: something acknowledged is missing")

        talk(files)
        newest = saver.load(THREAD)
        print(f"another process went on: {len(newest.messages)} messages, step {newest.step}")

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
    """Let a child save messages; gives back how many it was told are saved."""
    command = [sys.executable, __file__, "child", str(files)]
    told = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            told = int(line)
            if told == kill_after:
                os.kill(child.pid, signal.SIGKILL)
    return told


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
