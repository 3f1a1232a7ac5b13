"""An exception as it is recorded: its type, its message, and where it was raised."""

from __future__ import annotations

import traceback
from typing import Final

_MESSAGE: Final = 2000
_TRACEBACK: Final = 8000
_FRAMES: Final = 20
"""The innermost ones: frameworks call deeply, and what counts is where it was raised."""


def told_error(error: BaseException) -> dict[str, str]:
    """What is kept of an exception; the end of a long traceback, where it was raised."""
    return {
        "type": type(error).__qualname__,
        "message": _message(error)[:_MESSAGE],
        "traceback": "".join(traceback.format_exception(error, limit=-_FRAMES))[-_TRACEBACK:],
    }


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the one that is recorded must not be replaced by another one
        return "(it has no text)"
