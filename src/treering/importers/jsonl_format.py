"""The format of an exported history: JSON Lines, readable with any tool.

The first line names the format. Each thread then has a line with its head, followed by its checkpoints and
rewinds in commit order, each checkpoint after its parent. A checkpoint holds what changed since its parent:
for each list the number of items that stay (``keep``) and the items that follow (``add``), for the state the
values that are set and dropped. So the file grows with the conversation, not with its square. The last line
has totals, which reveal a truncated file.

Values are written as they are stored (see `core.encoding`): what JSON cannot express is ``{"$decimal":
"1.10"}`` and the like. Checkpoints of other threads are included if a fork needs them as its past, and so are
all other events of the thread: what the tasks of a graph wrote, its transcript, the spans and messages of its
runs. A run has a line of its own with its state; the lists that recorded requests share come before the first
request that needs them.
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
    """The first line: format and version."""

    version: int = VERSION


class ThreadLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="thread"):
    """A thread, and the checkpoint that its head was at.

    Lines for a store that has the beginning of the thread already say where its head was there
    (``continues``), and name all ``rewinds`` of the thread, also those that are not among the lines.
    """

    thread: str
    head: str
    created_at: str
    namespace: str = ""
    continues: str | None = None
    rewinds: list[str] = []


class ListDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first ``keep`` items of the parent's list, then ``add``."""

    keep: int = 0
    add: list[msgspec.Raw] = []


class ValueDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Keys of the parent's dict that are set and dropped."""

    set: dict[str, msgspec.Raw] = {}
    drop: list[str] = []


class StateDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Values of the parent's state that are set, dropped, or (large dicts) changed in some keys.

    With ``whole``, nothing of the parent's state stays.
    """

    whole: bool = False
    set: dict[str, msgspec.Raw] = {}
    drop: list[str] = []
    change: dict[str, ValueDelta] = {}


class CheckpointLine(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="checkpoint"
):
    """One checkpoint. ``revision`` is the id of its newest revision, if it was saved again.

    ``run``, ``span`` and ``agent`` are what it was saved in.
    """

    id: str
    thread: str
    step: int
    created_at: str
    namespace: str = ""
    parent: str | None = None
    note: str | None = None
    tags: list[str] = []
    lists: dict[str, ListDelta] = {}
    state: StateDelta = StateDelta()
    metadata: msgspec.Raw = EMPTY
    pending_interrupt: msgspec.Raw = NOTHING
    snapshot: str | None = None
    run: str | None = None
    span: str | None = None
    agent: str | None = None
    revision: str | None = None


class RewindLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="rewind"):
    """The head of a thread moved back."""

    id: str
    thread: str
    at: str
    data: msgspec.Raw
    namespace: str = ""


class ContentLine(msgspec.Struct, frozen=True, kw_only=True):
    """Stored content: JSON as it is, text as a string, bytes as Base64."""

    kind: Literal["json", "text", "bytes"]
    value: msgspec.Raw


class ListLine(msgspec.Struct, frozen=True, kw_only=True):
    """A list that an event refers to: the first items of list ``name`` of an earlier checkpoint."""

    checkpoint: str
    name: str
    length: int


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="event"):
    """Any other event of a thread: what the tasks of a graph wrote, a line of its transcript.

    ``slots`` are its small contents by address, ``objects`` the large ones, ``lists`` the lists of
    checkpoints by id. With ``by_index``, the event refers to its contents by their indexes within the commit,
    which must stay. ``own_run`` is the run that the event is forgotten with, if that is not the thread: a run
    whose thread was not known when it began.
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
    own_run: str | None = None


class ItemsLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="items"):
    """Items of a list that recorded requests share, from position ``at`` on.

    A list that begins behind position 0 shares what is before with ``parent``, a list of an earlier line.
    """

    list_id: str
    thread: str
    add: list[ContentLine]
    at: int = 0
    namespace: str = ""
    parent: str | None = None


class RunLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """The state of a run of a thread; what it did are events."""

    run: str
    thread: str
    state: msgspec.Raw
    namespace: str = ""


class RefLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="head"):
    """The head of a subgraph of a thread."""

    name: str
    thread: str
    checkpoint: str
    namespace: str = ""


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    """The last line: what the file contains."""

    threads: int
    checkpoints: int


Line = Start | ThreadLine | CheckpointLine | RewindLine | ItemsLine | EventLine | RunLine | RefLine | End

_decoder: Final = msgspec.json.Decoder(Line)
_encoder: Final = msgspec.json.Encoder()


def write_line(line: Line) -> bytes:
    """Encode a line, with its line feed."""
    return _encoder.encode(line) + b"\n"


def read_line(text: bytes) -> Line:
    """Decode a line. Raise `msgspec.MsgspecError` if it is malformed."""
    return _decoder.decode(text)


def raw_content(content: Content) -> msgspec.Raw:
    """Return stored content as JSON."""
    return msgspec.Raw(content.data if content.kind == "json" else encode_json(decode(content)))


def content_line(content: Content) -> ContentLine | None:
    """Return stored content for a line; ``None`` for a tree, which is not a value."""
    if content.kind == "json":
        return ContentLine(kind="json", value=msgspec.Raw(content.data))
    if content.kind == "text":
        return ContentLine(kind="text", value=msgspec.Raw(_encoder.encode(content.data.decode())))
    if content.kind == "bytes":
        return ContentLine(kind="bytes", value=msgspec.Raw(_encoder.encode(content.data)))
    return None


def content_of(line: ContentLine) -> Content:
    """Return the content of a line."""
    if line.kind == "json":
        decode_json(bytes(line.value))
        return Content("json", bytes(line.value))
    if line.kind == "text":
        return Content("text", msgspec.json.decode(line.value, type=str).encode())
    return Content("bytes", msgspec.json.decode(line.value, type=bytes))


def raw_value(value: object) -> msgspec.Raw:
    """Return a value as JSON. ``None`` and an empty dict are omitted from the line."""
    if value is None:
        return NOTHING
    return msgspec.Raw(encode_json(value, keep_order=True)) if value != {} else EMPTY


def value_of(raw: msgspec.Raw) -> object:
    """Return the value of JSON. Raise `InvalidInput` or `Corrupt` if it could not be stored."""
    value: object = decode_json(bytes(raw))
    encode(value, keep_order=True)
    return value
