"""A scheduled agent. Run it with a folder, in as many terminals as you like.

The first process schedules a task every second, and all of them share the work. Stop any of them in any way,
even with kill -9: no occurrence is lost, and no two processes run the same one at the same time.
"""

from __future__ import annotations

import os
import sys
import time

import treering
from treering.schedules.tasks import Occurrence


def answer(occurrence: Occurrence) -> str:
    """Stand in for an agent."""
    return f"{occurrence.prompt} ({occurrence.scheduled_at:%H:%M:%S}, attempt {occurrence.attempt})"


def main(folder: str = "./schedule-data", seconds: str = "5") -> None:
    with treering.open(folder) as store:
        if not store.schedules.list_tasks():
            store.schedules.interval(1, prompt="Anything new?", channel="terminal", chat_id="me")

        def send(_: Occurrence, result: str) -> None:
            print(f"process {os.getpid()}: {result}", flush=True)

        with store.schedules.worker(answer, deliver=send, lease_seconds=3):
            time.sleep(float(seconds))
        outcomes = [report.outcome for report in store.schedules.occurrences()]
        print(f"ran {outcomes.count('ok')}, skipped {outcomes.count('skipped')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
