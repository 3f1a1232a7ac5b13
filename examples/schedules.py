"""An agent that comes back on its own. Run it with a folder, in as many terminals as you like.

The first one schedules a task every second; all of them share the work. Stop any of them any way you like,
also with kill -9: no occurrence is lost, and none is done by two at the same time.
"""

from __future__ import annotations

import os
import sys
import time

import treering
from treering.schedules.fires import Fire


def answer(fire: Fire) -> str:
    """Stands in for an agent."""
    return f"{fire.prompt} ({fire.scheduled_at:%H:%M:%S}, attempt {fire.attempt})"


def main(folder: str = "./schedule-data", seconds: str = "5") -> None:
    with treering.open(folder) as store:
        if not store.schedules.list_tasks():
            store.schedules.interval(1, prompt="Anything new?", channel="terminal", chat_id="me")

        def send(_: Fire, result: str) -> None:
            print(f"process {os.getpid()}: {result}", flush=True)

        with store.schedules.worker(answer, deliver=send, lease_seconds=3):
            time.sleep(float(seconds))
        told = [report.outcome for report in store.schedules.fires()]
        print(f"ran {told.count('ok')}, skipped {told.count('skipped')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
