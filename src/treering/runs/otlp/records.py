"""What arrived: spans and log records as plain values, whichever encoding they came in."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from treering.core.batch import NUMBER_BITS

UNSET: Final = 0
ERROR: Final = 2
"""Status codes of the protocol."""
CLIENT: Final = 3
"""The span kind of a call to something remote."""
_HAS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200


class Source(msgspec.Struct, frozen=True):
    """Who sent it: the attributes of the resource, and the instrumentation with its version."""

    resource: dict[str, Any]
    scope: str
    scope_attributes: dict[str, Any]

    @property
    def service(self) -> str | None:
        """The name of the service, if it gave itself one."""
        name = self.resource.get("service.name")
        return name if isinstance(name, str) and name and not name.startswith("unknown_service") else None


class ReceivedSpan(msgspec.Struct, gc=False):
    """A span; its ids are lowercase hex, its times microseconds."""

    trace: str
    id: str
    parent: str | None
    name: str
    kind: int
    start_us: int
    end_us: int
    status: int
    status_message: str
    flags: int
    attributes: dict[str, Any]
    events: list[dict[str, Any]]
    links: list[dict[str, Any]]
    more: dict[str, Any]
    source: Source

    @property
    def is_entry(self) -> bool:
        """Whether it is the first span of its trace, or the first in this process."""
        return self.parent is None or self.flags & (_HAS_REMOTE | _IS_REMOTE) == _HAS_REMOTE | _IS_REMOTE


class ReceivedLog(msgspec.Struct, gc=False):
    """A log record; one that names no event has the name ``""``."""

    trace: str | None
    span: str | None
    ts_us: int
    severity: str
    event: str
    body: Any
    attributes: dict[str, Any]
    source: Source
    id: str = ""
    """What its row will be called."""


class Refused(msgspec.Struct, frozen=True):
    """Something that cannot be stored: what it is, and why."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class Received(msgspec.Struct):
    """The content of one request."""

    spans: list[ReceivedSpan] = []
    logs: list[ReceivedLog] = []
    refused: list[Refused] = []

    def __len__(self) -> int:
        return len(self.spans) + len(self.logs)


def fault_of(span: ReceivedSpan) -> str | None:
    """Why a span cannot be stored; ``None`` when it can."""
    if len(span.trace) != 32 or span.trace == _NO_TRACE:  # noqa: PLR2004 - 16 bytes in hex
        return "its trace id is not 16 bytes, or all zero"
    if len(span.id) != 16 or span.id == _NO_SPAN:  # noqa: PLR2004 - 8 bytes in hex
        return "its span id is not 8 bytes, or all zero"
    if not span.start_us:
        return "it has no start time"
    if span.start_us >> NUMBER_BITS or span.end_us >> NUMBER_BITS:
        return "its times are beyond the year 2255"
    return None


_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
