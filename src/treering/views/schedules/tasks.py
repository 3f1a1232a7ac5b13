"""Tasks: what is to be done, when, and which of its fires are open.

A task is one ref, its whole state one record: the next time it is due, and every fire that is waiting or
running. Whatever happens to a task is a new record put in the place of the one that was read, so two workers
can never both believe that a fire is theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import structs

from treering.core.clock import to_iso
from treering.core.encoding import decode_json, encode_json
from treering.core.scopes import Scope, namespace_prefix, parse_scope
from treering.errors import Corrupt
from treering.views.chat_ids import TaskId
from treering.views.schedules.timing import TaskType, Timing

if TYPE_CHECKING:
    from treering.core.records import Ref

CatchUp = Literal["skip", "once", "all"]
"""After a time without workers: nothing of what was missed, the newest of it, or all of it."""

Overlap = Literal["skip", "buffer", "allow"]
"""While a fire is open: leave the next one out, let one wait, or run them side by side."""

Status = Literal["active", "paused", "cancelled", "done"]

SCHEDULES: Final = "schedule/"
_METADATA: Final = b'"metadata":'


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to do with fires that come late, or while another one is open."""

    catch_up: CatchUp = "once"
    catch_up_max: int = 100
    """With ``all``: the newest this many."""
    window_seconds: float = 86_400.0
    """What was due longer ago is never caught up."""
    grace_seconds: float = 60.0
    """With ``skip``: how late a fire may be and still run."""
    overlap: Overlap = "skip"
    max_attempts: int = 5
    """How many workers may die on one fire before it is given up."""


class OpenFire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An occurrence that was not finished yet: it waits, or a worker has it."""

    at_us: int
    worker: str | None = None
    claimed_at_us: int = 0
    attempt: int = 0
    token: int = 0
    manual: bool = False


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A scheduled task as it is now."""

    id: str
    prompt: str
    type: TaskType
    value: str
    """The cron expression, the seconds, or the ISO time."""
    tz: str = "UTC"
    channel: str = ""
    chat_id: str = ""
    namespace: str = ""
    created_at_us: int
    last_run_us: int | None = None
    next_run_us: int | None = None
    status: Status = "active"
    policy: Policy = Policy()
    fires: tuple[OpenFire, ...] = ()
    runs: int = 0
    claims: int = 0
    """How often any of its fires was claimed: the last fencing token."""
    last_manual_us: int = 0
    metadata: dict[str, Any] = {}

    @property
    def active(self) -> bool:
        """Whether it is still going to run."""
        return self.status == "active"

    @property
    def created_at(self) -> str:
        """ISO 8601 with offset."""
        return to_iso(self.created_at_us)

    @property
    def last_run(self) -> str | None:
        """When a worker last began with it, ISO 8601 with offset."""
        return None if self.last_run_us is None else to_iso(self.last_run_us)

    @property
    def next_run(self) -> str | None:
        """When it is due next, ISO 8601 with offset; ``None`` when it is not going to run."""
        return to_iso(self.next_run_us) if self.active and self.next_run_us is not None else None

    @property
    def thread_id(self) -> str:
        """The thread that its fires write to."""
        return TaskId(self.id).thread_id

    @property
    def timing(self) -> Timing:
        """When it is due."""
        return Timing(type=self.type, value=self.value, tz=self.tz, anchor_us=self.created_at_us)

    @property
    def scope(self) -> str:
        """What it is forgotten with."""
        return str(Scope(self.namespace, "schedule", self.id))

    def to_dict(self) -> dict[str, Any]:
        """As CianaParrot's ``scheduled_tasks.json`` has it."""
        return {
            "id": self.id,
            "prompt": self.prompt,
            "type": self.type,
            "value": self.value,
            "channel": self.channel,
            "chat_id": self.chat_id,
            "created_at": self.created_at,
            "last_run": self.last_run,
            "active": self.active,
        }


def task_ref(task_id: str, namespace: str) -> str:
    """The name of the ref that holds a task."""
    return f"{SCHEDULES}{namespace_prefix(namespace)}{task_id}"


def ref_of_scope(scope: str) -> str:
    """The same, from the scope that its events have."""
    found = parse_scope(scope)
    return task_ref(found.id, found.namespace)


def encoded(task: Task) -> bytes:
    """A task for its ref. Metadata may hold what plain JSON cannot, the rest is written the quick way."""
    data = msgspec.json.encode(structs.replace(task, metadata={}) if task.metadata else task)
    if not task.metadata:
        return data
    return encode_json({**msgspec.json.decode(data), "metadata": task.metadata})


def decoded(ref: Ref) -> Task:
    """A task out of its ref."""
    try:
        if _METADATA in ref.value:
            return msgspec.convert(decode_json(ref.value), Task)
        return msgspec.json.decode(ref.value, type=Task)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(
            f"the task at {ref.name!r} cannot be read ({error}); restore it from a backup"
        ) from None
