"""Every error that treering raises on purpose.

Callers never have to match message text: the class determines the HTTP status, the exit code of the command
line, and whether a retry may succeed. The message says what failed, which id or path, and what to do next.
Errors of drivers (sqlite3, psycopg, obstore, redis) are translated into these in one place per driver and
never leak.
"""

from __future__ import annotations

from typing import ClassVar, Final

_SHOWN: Final = 5


class TreeringError(Exception):
    """Base class of all errors of treering."""

    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False


class InvalidInput(TreeringError):
    """The input is invalid; nothing was written."""

    http_status = 422
    exit_code = 2


class Unencodable(InvalidInput):
    """A value cannot be encoded safely; register a codec for its type, or convert it first."""


class NotFound(TreeringError):
    """Not found in this store."""

    http_status = 404
    exit_code = 3


class Conflict(TreeringError):
    """A precondition no longer holds, because someone else wrote first; nothing was written."""

    http_status = 409
    exit_code = 4


class RefMoved(Conflict):
    """A ref is not at the expected version; read it again."""


class ListMoved(Conflict):
    """A list is longer than expected, or belongs to another scope; branch off at the known length."""


class Fenced(Conflict):
    """The lease of this write was lost to another holder; claim it again before writing."""


class MissingObjects(Conflict):
    """A commit requires objects that are not stored; stage them again and retry."""

    retryable = True

    def __init__(self, hashes: tuple[str, ...]) -> None:
        self.hashes = hashes
        shown = ", ".join(name[:12] for name in hashes[:_SHOWN]) + (", ..." if len(hashes) > _SHOWN else "")
        super().__init__(
            f"{len(hashes)} required object(s) are not stored: {shown}; stage them and commit again"
        )


class Vetoed(TreeringError):
    """A `pre_checkpoint_save` hook vetoed the save; nothing was written."""

    http_status = 403
    exit_code = 17


class Corrupt(TreeringError):
    """Stored bytes do not match their checksum; the data was not returned."""

    http_status = 500
    exit_code = 5


class StoreFull(TreeringError):
    """The disk or quota is full; nothing was written. Free space and retry."""

    http_status = 507
    exit_code = 6
    retryable = True


class Unsupported(TreeringError):
    """The engine does not support this; see its ``caps``."""

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
    """More data arrives than can be written; nothing of this request was kept. Retry shortly."""


class TimedOut(TreeringError):
    """The deadline passed; nothing was written."""

    http_status = 504
    exit_code = 12
    retryable = True


class ReadOnly(TreeringError):
    """The store is read-only: its folder or connection cannot be written."""

    http_status = 403
    exit_code = 9


class Unauthorized(TreeringError):
    """The server requires an API key, or does not know this one."""

    http_status = 401
    exit_code = 13


class Forbidden(TreeringError):
    """The API key is valid, but does not permit this."""

    http_status = 403
    exit_code = 14


class TooLarge(TreeringError):
    """The request is too large; nothing was written. Split it into smaller ones."""

    http_status = 413
    exit_code = 15


class TooMany(TreeringError):
    """Rate limit exceeded; retry after ``retry_after`` seconds."""

    http_status = 429
    exit_code = 16
    retryable = True

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class SecretsFound(TreeringError):
    """Keys or passwords are in what was to be handed on; nothing was. ``found`` says where, not what."""

    http_status = 422
    exit_code = 18

    def __init__(self, message: str, *, found: tuple[str, ...] = ()) -> None:
        self.found = found
        super().__init__(message)


class NewerStore(TreeringError):
    """The store was written by a newer treering; upgrade this installation to open it."""

    http_status = 500
    exit_code = 10


class Closed(TreeringError):
    """The store is closed; open it again."""


class BudgetExceeded(TreeringError):
    """A budget is exhausted; the call was denied and not counted.

    ``budget`` names the limit as it was configured (``run_by_tool['search']``), ``count`` is the usage so
    far.
    """

    http_status = 429
    exit_code = 11

    def __init__(self, message: str, *, budget: str, limit: int, count: int) -> None:
        self.budget = budget
        self.limit = limit
        self.count = count
        super().__init__(message)
