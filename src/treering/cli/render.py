"""How messages, values and checkpoints read on a terminal, and how they look as JSON.

Frameworks spell messages in their own ways. What most of them share is known here (a role or type, a content
that is text or a list of blocks, tool calls beside it); anything else is shown as the JSON that it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from treering.cli.console import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.threads.checkpoint_record import CheckpointRecord
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
    if isinstance(message, dict):
        fields = cast("dict[str, Any]", message)
        for key in ("role", "type", "kind"):
            if isinstance(fields.get(key), str):
                return clean(fields[key])
    return "message"


def words(message: Any) -> str:
    """Return the text of a message, with its tool calls."""
    if isinstance(message, str):
        return clean(message)
    if not isinstance(message, dict):
        return clean(as_json(message))
    fields = cast("dict[str, Any]", message)
    said = [_content(fields["content"])] if fields.get("content") else []
    said += [_call(each) for each in _items(fields.get("tool_calls"))]
    if not said:
        said = [as_json({key: value for key, value in fields.items() if key not in ("role", "type")})]
    return clean("\n".join(said))


def one_line(text: str, limit: int = _LINE) -> str:
    """Return the beginning of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def when(iso: str) -> str:
    """Format a time for people, to the second, in UTC."""
    return iso[:19].replace("T", " ")


def short_ids(ids: Iterable[str], shortest: int) -> dict[str, str]:
    """Return the shortest unique prefix of each id, at least ``shortest`` characters."""
    ordered = sorted(set(ids))
    cut: dict[str, str] = {}
    for index, each in enumerate(ordered):
        neighbours = ordered[max(index - 1, 0) : index] + ordered[index + 1 : index + 2]
        needed = max((_common(each, other) + 1 for other in neighbours), default=0)
        cut[each] = each[: max(needed, shortest)]
    return cut


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
        "message_count": message_count(checkpoint),
        "pending_interrupt": raw(checkpoint.pending_interrupt),
        "metadata": raw(checkpoint.metadata),
        "snapshot": checkpoint.snapshot,
    }


def message_count(checkpoint: CheckpointRecord) -> int:
    """Return how many messages the conversation has at a checkpoint."""
    from treering.threads.checkpoint_record import MESSAGES

    stretch = checkpoint.lists.get(MESSAGES)
    return 0 if stretch is None else stretch.length


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = _items(content)
    return "\n".join(map(_block, blocks)) if blocks else as_json(content)


def _block(block: Any) -> str:
    if isinstance(block, dict):
        fields = cast("dict[str, Any]", block)
        for key in ("text", "thinking"):
            if isinstance(fields.get(key), str):
                return fields[key]
        if fields.get("type") in ("tool_use", "tool_call", "tool-call"):
            return _call(fields)
        if fields.get("content") and fields.get("type") in ("tool_result", "tool-result"):
            return _content(fields["content"])
    return block if isinstance(block, str) else as_json(block)


def _call(call: Any) -> str:
    if not isinstance(call, dict):
        return as_json(call)
    fields = cast("dict[str, Any]", call)
    function: dict[str, Any] = (
        cast("dict[str, Any]", fields["function"]) if _is_dict(fields.get("function")) else fields
    )
    name = function.get("name") or function.get("tool_name") or function.get("toolName")
    given: Any = next((function[key] for key in ("arguments", "args", "input") if key in function), "")
    return f"→ {name}({given if isinstance(given, str) else as_json(given)})"


def _items(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _common(one: str, other: str) -> int:
    for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return index
    return min(len(one), len(other))
