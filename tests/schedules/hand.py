"""What the workers of the kill tests do: write down that they did it, and hold on to some fires for ever."""

from __future__ import annotations

import os
import time


def handle(fire):
    line = f"{os.getpid()} {fire.task_id} {fire.scheduled_at_us} {fire.attempt} {fire.token} {fire.prompt}\n"
    log = os.open(os.environ["TREERING_TEST_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line.encode())
    finally:
        os.close(log)
    if fire.prompt == "hold" and fire.attempt == 1:
        time.sleep(3600)
    return fire.attempt
