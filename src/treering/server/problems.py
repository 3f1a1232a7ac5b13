"""Errors as RFC 9457 problem documents.

``type`` is the class of the error, so that a client can raise the same one; ``detail`` is its message. What
nobody foresaw is logged with a reference and answered without details.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any, Final

import msgspec
from starlette.responses import Response

from treering.errors import BudgetExceeded, MissingObjects, TooMany, TreeringError, Unauthorized

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "urn:treering:error:"
_log: Final = logging.getLogger("treering.server")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, where, and whether the same call may succeed later."""

    type: str
    title: str
    status: int
    detail: str
    retryable: bool = False
    more: dict[str, Any] = {}
    """What belongs to the class of the error: ``hashes``, ``budget`` and the like."""


def problem_of(error: TreeringError) -> Problem:
    """An error as it travels."""
    kind = type(error)
    return Problem(
        type=TYPE + kind.__name__,
        title=(kind.__doc__ or kind.__name__).strip().partition("\n")[0],
        status=kind.http_status,
        detail=str(error) or kind.__name__,
        retryable=kind.retryable,
        more=_more(error),
    )


def respond(error: TreeringError) -> Response:
    """The answer to a call that failed."""
    problem = problem_of(error)
    headers: dict[str, str] = {}
    if isinstance(error, TooMany):
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    elif problem.status == 503:  # noqa: PLR2004 - unavailable
        headers["retry-after"] = "1"
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = 'Bearer realm="treering"'
    return Response(
        msgspec.json.encode(problem), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers
    )


def respond_unforeseen(error: Exception, where: str) -> Response:
    """The answer to a bug of ours: a reference into the log, and nothing of what is in it."""
    reference = secrets.token_hex(4)
    _log.error("%s failed [%s]", where, reference, exc_info=error)
    return plain(500, "Something went wrong on the server", f"see the server's log for {reference}")


def plain(status: int, title: str, detail: str, *, headers: dict[str, str] | None = None) -> Response:
    """A problem that is no error of ours: no such route, wrong method, wrong type of content."""
    problem = Problem(type="about:blank", title=title, status=status, detail=detail)
    return Response(
        msgspec.json.encode(problem), status_code=status, media_type=MEDIA_TYPE, headers=headers or {}
    )


def _more(error: TreeringError) -> dict[str, Any]:
    if isinstance(error, MissingObjects):
        return {"hashes": list(error.hashes)}
    if isinstance(error, BudgetExceeded):
        return {"budget": error.budget, "limit": error.limit, "count": error.count}
    if isinstance(error, TooMany):
        return {"retry_after": error.retry_after}
    return {}
