"""The handler of the kill tests: it logs every call, and blocks forever on the first attempt of some."""

from __future__ import annotations

import os
import time


def handle(occurrence):
    fields = (
        os.getpid(),
        occurrence.task_id,
        occurrence.scheduled_at_us,
        occurrence.attempt,
        occurrence.token,
        occurrence.prompt,
    )
    line = " ".join(map(str, fields)) + "\n"
    log = os.open(os.environ["TREERING_TEST_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line.encode())
    finally:
        os.close(log)
    if occurrence.prompt == "hold" and occurrence.attempt == 1:
        time.sleep(3600)
    return occurrence.attempt
