"""The lines of an exported history: JSON, one thing a line, readable with any tool.

The first line says what the file is. Then, per thread, a line with its head, and its checkpoints and rewinds
in the order in which they were committed, each behind its parent. A checkpoint says what changed against its
parent: of each list how many items stay (``keep``) and which follow (``add``), of the state which values are
set and dropped. The file therefore grows with what was said, not with its square. The last line counts, so
that a file that was cut off is noticed.

Values are written as they are stored (see `core.encoding`): what JSON cannot say is ``{"$decimal": "1.10"}``.
Checkpoints of other threads come along where a fork needs them as its past, and so does whatever else belongs
to the thread: what tasks of a graph wrote, its transcript.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from treering.core.content import Content
from treering.core.encoding import decode, decode_json, encode, encode_json

VERSION: Final = 1
NOTHING: Final = msgspec.Raw(b"null")
EMPTY: Final = msgspec.Raw(b"{}")


class Start(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="treering.threads"):
    """What the file is."""

    version: int = VERSION


class ThreadLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="thread"):
    """A thread, and where its head was."""

    thread: str
    head: str
    created_at: str
    namespace: str = ""


class ListChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first ``keep`` items of the parent's list, then these."""

    keep: int = 0
    add: list[msgspec.Raw] = []


class ValueChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Keys of the parent's dict that are set and dropped."""

    set: dict[str, msgspec.Raw] = {}
    drop: list[str] = []


class StateChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Values of the parent's state that are set, dropped, or (large dicts) changed in some keys.

    ``whole`` says that the parent's state does not count.
    """

    whole: bool = False
    set: dict[str, msgspec.Raw] = {}
    drop: list[str] = []
    change: dict[str, ValueChange] = {}


class CheckpointLine(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="checkpoint"
):
    """One checkpoint."""

    id: str
    thread: str
    step: int
    created_at: str
    namespace: str = ""
    parent: str | None = None
    note: str | None = None
    tags: list[str] = []
    lists: dict[str, ListChange] = {}
    state: StateChange = StateChange()
    metadata: msgspec.Raw = EMPTY
    pending_interrupt: msgspec.Raw = NOTHING
    snapshot: str | None = None


class RewindLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="rewind"):
    """The head of a thread moved back."""

    id: str
    thread: str
    at: str
    told: msgspec.Raw
    namespace: str = ""


class ContentLine(msgspec.Struct, frozen=True, kw_only=True):
    """Content as it is stored: JSON as it is, text as a string, bytes as Base64."""

    kind: Literal["json", "text", "bytes"]
    value: msgspec.Raw


class ListLine(msgspec.Struct, frozen=True, kw_only=True):
    """A list that an event names: the first items of the list ``name`` of a checkpoint above it."""

    checkpoint: str
    name: str
    length: int


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="event"):
    """Something else that belongs to a thread: what tasks of a graph wrote, a line of its transcript.

    ``slots`` are its small contents by where they lay, ``objects`` the large ones, ``lists`` those of
    checkpoints by their ids. With ``by_index`` the event names its contents by their index within the commit,
    so these must stay.
    """

    id: str
    thread: str
    type: str
    at: str
    namespace: str = ""
    columns: dict[str, str | int | dict[str, int]] = {}
    data: msgspec.Raw = NOTHING
    body: str | None = None
    links: list[str] = []
    by_index: bool = False
    slots: dict[str, ContentLine] = {}
    objects: list[ContentLine] = []
    lists: dict[str, ListLine] = {}


class RefLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="head"):
    """A further head of a thread, of a graph within a graph."""

    name: str
    thread: str
    checkpoint: str
    namespace: str = ""


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    """How much the file holds."""

    threads: int
    checkpoints: int


Line = Start | ThreadLine | CheckpointLine | RewindLine | EventLine | RefLine | End

_decoder: Final = msgspec.json.Decoder(Line)
_encoder: Final = msgspec.json.Encoder()


def write_line(line: Line) -> bytes:
    """One line, with its end."""
    return _encoder.encode(line) + b"\n"


def read_line(text: bytes) -> Line:
    """Read a line; raises `msgspec.MsgspecError` and says what is wrong with it."""
    return _decoder.decode(text)


def raw_content(content: Content) -> msgspec.Raw:
    """Stored content as JSON."""
    return msgspec.Raw(content.data if content.kind == "json" else encode_json(decode(content)))


def content_line(content: Content) -> ContentLine | None:
    """Stored content for a line; ``None`` for a tree, which is no value."""
    if content.kind == "json":
        return ContentLine(kind="json", value=msgspec.Raw(content.data))
    if content.kind == "text":
        return ContentLine(kind="text", value=msgspec.Raw(_encoder.encode(content.data.decode())))
    if content.kind == "bytes":
        return ContentLine(kind="bytes", value=msgspec.Raw(_encoder.encode(content.data)))
    return None


def content_of(line: ContentLine) -> Content:
    """The content behind a line."""
    if line.kind == "json":
        decode_json(bytes(line.value))
        return Content("json", bytes(line.value))
    if line.kind == "text":
        return Content("text", msgspec.json.decode(line.value, type=str).encode())
    return Content("bytes", msgspec.json.decode(line.value, type=bytes))


def raw_value(value: object) -> msgspec.Raw:
    """A value as JSON; no value and an empty object are left out of a line."""
    if value is None:
        return NOTHING
    return msgspec.Raw(encode_json(value, keep_order=True)) if value != {} else EMPTY


def value_of(raw: msgspec.Raw) -> object:
    """The value behind JSON; `InvalidInput` or `Corrupt` when it is none of ours."""
    value: object = decode_json(bytes(raw))
    encode(value, keep_order=True)
    return value
