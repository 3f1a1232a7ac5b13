"""The server's clock, without asking the server every time.

Leases and grace times of all machines go by one clock, which can only be the server's. It is read once a
minute and carried on by this machine's steady clock in between: off by half a trip to the server plus a
few milliseconds of drift, which a lease does not notice and a fencing token makes harmless.
"""

from __future__ import annotations

import time
from typing import Final

NOW_SQL: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
REFRESH_US: Final = 60 * 1_000_000

# Goes on while the machine sleeps, where the system has such a clock.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ServerClock:
    """Microseconds since 1970 on the server."""

    def __init__(self) -> None:
        self._ahead_us: int | None = None
        self._read_at_us = 0

    def now_us(self) -> int:
        """The time on the server."""
        assert self._ahead_us is not None  # noqa: S101 - set before the engine is handed out
        return steady_us() + self._ahead_us

    @property
    def is_stale(self) -> bool:
        """Whether it is time to read it again."""
        return self._ahead_us is None or steady_us() - self._read_at_us > REFRESH_US

    def set(self, server_us: int, *, asked_at_us: int) -> None:
        """Take what the server answered to a question that was asked at ``asked_at_us`` of `steady_us`."""
        here_us = steady_us()
        self._ahead_us = server_us - (asked_at_us + here_us) // 2
        self._read_at_us = here_us


def steady_us() -> int:
    """This machine's steady clock."""
    return time.clock_gettime_ns(_STEADY) // 1000
