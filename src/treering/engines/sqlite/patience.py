"""Patience: waiting for a lock of the database, in a way that starves nobody."""

from __future__ import annotations

import random
import sqlite3
import time
from typing import TYPE_CHECKING, Final, TypeVar

from treering.engines.sqlite.failures import is_busy

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")

BUSY_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.002


def patiently(action: Callable[[], Answer]) -> Answer:
    """Do something that needs a lock of the database, patiently but not for ever."""
    try:
        return action()
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        time.sleep(random.uniform(0, RETRY_SECONDS))
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
