"""Render messages, values and checkpoints for a terminal and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.cli.console import clean, coloured, dim, size

if TYPE_CHECKING:
    from datetime import datetime

    from treering.threads.checkpoint import CheckpointRecord
    from treering.threads.directory import ThreadInfo

_LINE: Final = 72
_WIDE: Final = 100


def as_json(value: Any) -> str:
    """Return a stored value as one line of JSON, without loss (see `treering.core.encoding`)."""
    from treering.core.encoding import encode_json

    return encode_json(value, keep_order=True).decode()


def raw(value: Any) -> Any:
    """Return a stored value for use inside printed JSON."""
    import msgspec

    from treering.core.encoding import encode_json

    return msgspec.Raw(encode_json(value, keep_order=True))


def pasteable(verb: str, thread: ThreadInfo, *words: str) -> str:
    """Return a command for a thread, quoted for a shell."""
    import shlex

    whose = ("--user-namespace", thread.namespace) if thread.namespace else ()
    return clean(shlex.join(["treering", verb, thread.id, *words, *whose]))


def speaker(message: Any) -> str:
    """Return who wrote a message."""
    from treering.runs.messages import read_message

    found = read_message(message)
    return clean(found.role if found.name is None or found.role == "tool" else f"{found.role} {found.name}")


def words(message: Any) -> str:
    """Return what a message says: its text, tool calls, results and attachments."""
    from treering.runs.messages import message_text, read_message

    return clean(message_text(read_message(message)))


def lines_of(message: Any, most: int | None) -> list[str]:
    """Return the lines of what a message says, in colours that it has.

    Of more than ``most`` lines, or of lines too long for them, only the beginning, and how much there is.
    """
    from treering.runs.messages import message_text, read_message

    text = message_text(read_message(message))
    whole = coloured(text).split("\n")
    if most is None or (len(whole) <= most and len(text) <= most * _WIDE):
        return whole
    shown = coloured(text[: most * _WIDE]).split("\n")[:most]
    left = len(whole) - len(shown)
    rest = f"{left:,} more lines of {len(whole):,}" if left else "more"
    return [*shown, dim(f"… {rest} ({size(len(text.encode()))}; --full shows all)")]


def one_line(text: str, limit: int = _LINE) -> str:
    """Return the beginning of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def said(message: Any, limit: int = _LINE) -> str:
    """Return who says a message, and the beginning of what it says on one line."""
    from treering.runs.messages import preview

    return f"{speaker(message)}: {clean(preview(message, limit))}"


def said_value(value: Any, limit: int = _LINE) -> str:
    """Return the beginning of an input or output on one line: the last message, if it holds messages."""
    from treering.runs.messages import preview_of, preview_value, read_messages

    messages = read_messages(value)
    return clean(preview_of(messages[-1], limit) if messages else preview_value(value, limit))


def when(time: str | int | datetime) -> str:
    """Format a time for people, to the second, in the local time zone and with its name.

    ``time`` is ISO 8601, microseconds or a datetime; other text, such as ``-``, is returned as it is.
    """
    moment = _moment(time)
    return str(time) if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def clock_time(time: str | int | datetime) -> tuple[str, str]:
    """Return the local day with its time zone, and the time of that day to the millisecond."""
    moment = _moment(time)
    if moment is None:
        return str(time), ""
    local = moment.astimezone()
    return local.strftime("%Y-%m-%d %Z"), local.strftime("%H:%M:%S.") + f"{local.microsecond // 1000:03}"


def local_time(text: str) -> str:
    """Return a time that a person typed with its UTC offset: without one, it is in the local time zone.

    Other text is returned as it is.
    """
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    is_time = "-" in text and moment.tzinfo is None  # 12 is a step, and 20261116 may be one
    return moment.astimezone().isoformat() if is_time else text


def _moment(time: str | int | datetime) -> datetime | None:
    from datetime import UTC, datetime

    from treering.core.clock import to_datetime

    if isinstance(time, int):
        return to_datetime(time)
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def summary(checkpoint: CheckpointRecord) -> dict[str, Any]:
    """Return a checkpoint without its content, for JSON."""
    return {
        "id": checkpoint.id,
        "thread_id": checkpoint.thread,
        "namespace": checkpoint.namespace,
        "parent_id": checkpoint.parent,
        "step": checkpoint.step,
        "created_at": checkpoint.created_at.isoformat(),
        "note": checkpoint.note,
        "tags": list(checkpoint.tags),
        "message_count": checkpoint.message_count,
        "pending_interrupt": raw(checkpoint.pending_interrupt),
        "metadata": raw(checkpoint.metadata),
        "snapshot": checkpoint.snapshot,
    }
