"""Render messages, values and checkpoints for a terminal and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.cli.console import clean

if TYPE_CHECKING:
    from treering.threads.checkpoint import CheckpointRecord
    from treering.threads.directory import ThreadInfo

_LINE: Final = 72


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


def one_line(text: str, limit: int = _LINE) -> str:
    """Return the beginning of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def said(message: Any, limit: int = _LINE) -> str:
    """Return who says a message, and the beginning of what it says on one line."""
    from treering.runs.messages import preview

    return f"{speaker(message)}: {clean(preview(message, limit))}"


def when(iso: str) -> str:
    """Format a time for people, to the second, in UTC."""
    return iso[:19].replace("T", " ")


def summary(checkpoint: CheckpointRecord) -> dict[str, Any]:
    """Return a checkpoint without its content, for JSON."""
    return {
        "id": checkpoint.id,
        "thread_id": checkpoint.thread,
        "namespace": checkpoint.namespace,
        "parent_id": checkpoint.parent,
        "step": checkpoint.step,
        "created_at": checkpoint.created_at,
        "note": checkpoint.note,
        "tags": list(checkpoint.tags),
        "message_count": checkpoint.message_count,
        "pending_interrupt": raw(checkpoint.pending_interrupt),
        "metadata": raw(checkpoint.metadata),
        "snapshot": checkpoint.snapshot,
    }
