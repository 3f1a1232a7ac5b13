"""Every error that treering raises on purpose.

A caller should never have to match message text: the class says which HTTP status the server answers,
which code the command line exits with, and whether the same call may succeed when tried again. The
message says what failed, which id or path, and what to do next. Errors of drivers (sqlite3, psycopg,
obstore, redis) are translated into these at one place per driver and never leak.
"""

from __future__ import annotations

from typing import ClassVar, Final

_SHOWN: Final = 5


class TreeringError(Exception):
    """Something went wrong in treering; see the message."""

    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False


class InvalidInput(TreeringError):
    """The input is not acceptable; nothing was written."""

    http_status = 422
    exit_code = 2


class Unencodable(InvalidInput):
    """A value has no safe encoding; register a codec for its type or convert it first."""


class NotFound(TreeringError):
    """What was asked for is not in this store."""

    http_status = 404
    exit_code = 3


class Conflict(TreeringError):
    """Someone else moved first: a precondition no longer holds, and nothing was written."""

    http_status = 409
    exit_code = 4


class RefMoved(Conflict):
    """A ref is not at the version that was expected; read it again."""


class ListMoved(Conflict):
    """A list is longer than was expected, or of another scope; branch off where you know it."""


class Fenced(Conflict):
    """The lease behind this write is held by someone else now; claim it again before writing."""


class MissingObjects(Conflict):
    """A commit requires objects that the store does not hold; stage them again and retry."""

    retryable = True

    def __init__(self, hashes: tuple[str, ...]) -> None:
        self.hashes = hashes
        shown = ", ".join(name[:12] for name in hashes[:_SHOWN]) + (", ..." if len(hashes) > _SHOWN else "")
        super().__init__(
            f"{len(hashes)} required object(s) are not stored: {shown}; stage them and commit again"
        )


class Corrupt(TreeringError):
    """Stored bytes do not match their checksum; the data was not returned."""

    http_status = 500
    exit_code = 5


class StoreFull(TreeringError):
    """The disk or the quota is full; nothing of this write was kept. Free space and retry."""

    http_status = 507
    exit_code = 6
    retryable = True


class Unsupported(TreeringError):
    """This engine does not offer that capability; see its ``caps``."""

    http_status = 501
    exit_code = 7


class MissingExtra(Unsupported):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs an optional dependency: pip install 'treering[{extra}]'")


class Unreachable(TreeringError):
    """A server or folder cannot be reached or opened."""

    http_status = 503
    exit_code = 8
    retryable = True


class Busy(Unreachable):
    """The store stayed locked by other writers past the deadline; try again."""


class Overloaded(Unreachable):
    """More arrives than can be written just now; nothing of this was kept. Send it again in a moment."""


class TimedOut(TreeringError):
    """The work was not done by its deadline; nothing of it was kept."""

    http_status = 504
    exit_code = 12
    retryable = True


class ReadOnly(TreeringError):
    """The store cannot be written here: the folder or the connection is read-only."""

    http_status = 403
    exit_code = 9


class Unauthorized(TreeringError):
    """The server wants an API key, or does not know this one."""

    http_status = 401
    exit_code = 13


class Forbidden(TreeringError):
    """The API key is good, but not for this."""

    http_status = 403
    exit_code = 14


class TooLarge(TreeringError):
    """More bytes than are accepted at once; nothing was written. Send less, or in pieces."""

    http_status = 413
    exit_code = 15


class TooMany(TreeringError):
    """Too many calls at once; wait ``retry_after`` seconds and go on."""

    http_status = 429
    exit_code = 16
    retryable = True

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class NewerStore(TreeringError):
    """The store was written by a newer treering; upgrade this installation to open it."""

    http_status = 500
    exit_code = 10


class Closed(TreeringError):
    """The store was closed; open it again."""


class BudgetExceeded(TreeringError):
    """A limit is reached: one more would be more than the budget allows. Nothing was counted.

    ``budget`` names the limit as it was given (``run_by_tool['search']``), ``count`` is what was used up.
    """

    http_status = 429
    exit_code = 11

    def __init__(self, message: str, *, budget: str, limit: int, count: int) -> None:
        self.budget = budget
        self.limit = limit
        self.count = count
        super().__init__(message)
