"""The caller's project: its size, verification, garbage collection, erasure, and its API keys."""

from __future__ import annotations

import os
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, structs

from treering.api import redacted
from treering.core.clock import to_iso
from treering.core.query import json_rows
from treering.core.records import Archive, Archived
from treering.core.retention import Keep
from treering.engines.cells import MoveReport
from treering.errors import Forbidden, InvalidInput, MissingExtra, NotFound, Unsupported
from treering.maintenance.audit import AuditReport, Proof, Seal
from treering.maintenance.forget import Forgotten
from treering.maintenance.gc import Collection
from treering.maintenance.stats import Growth, Stats
from treering.maintenance.verify import Verification, parse_since
from treering.server.auth import Key, Keys, Scope
from treering.server.endpoints import OK, Call, Empty, endpoint

Count = Annotated[int, Meta(ge=1, le=2**62)]


class KeepRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to keep of each thread, workspace or agent; see `treering.Keep`."""

    last: Count | None = None
    hourly: Count | None = None
    daily: Count | None = None
    weekly: Count | None = None
    monthly: Count | None = None
    tagged: tuple[str, ...] = ()
    within: str | None = None
    """An age, such as ``30d`` or ``12h``."""
    max_bytes: Count | None = None


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to keep (without a rule: everything), and whether to change anything."""

    keep: KeepRule | None = None
    dry_run: bool = True
    grace_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 3600.0


class Selection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to erase: a thread (in a namespace), a whole namespace, or one scope."""

    thread: str | None = None
    namespace: str | None = None
    scope: str | None = None
    cascade: bool = False


class ArchiveOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to archive: everything of the days before ``before``, an age such as ``30d`` or a date."""

    before: str


class SqlRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A SELECT, values for its ``?``, and its bounds."""

    sql: Annotated[str, Meta(max_length=100_000)]
    params: tuple[str | int | float | bool | None, ...] = ()
    max_rows: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    seconds: Annotated[float, Meta(gt=0, le=60)] = 30.0


class SqlRows(Struct, frozen=True, kw_only=True):
    """The rows of a query. Dates and times are ISO 8601; with ``truncated``, there are more rows."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool
    seconds: float


class SealList(Struct, frozen=True, kw_only=True):
    """The seals of a project, oldest first, without their lists of commits."""

    seals: tuple[Seal, ...]


class SealRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to seal: with fewer commits than ``min_commits``, only once the oldest is older than this."""

    min_commits: Count = 1
    max_age_seconds: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class NewSeal(Struct, frozen=True, kw_only=True):
    """The new seal, or null if there was nothing to seal."""

    seal: Seal | None


class PublishedSeals(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seals as they were published, and the public key (PEM) that they have to be signed with, if any."""

    against: tuple[Seal, ...] = ()
    key: str | None = None


class StatsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether to read every row of a large project, instead of estimating what came since it was measured."""

    exact: bool = False


class GrowthQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many days the trend covers."""

    last_days: Annotated[int, Meta(ge=1, le=3650)] = 7


class VerifyQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to verify, and with how many processes.

    ``since`` is a sequence number (0 for everything), ``last``, an age such as ``36h``, or an ISO 8601 time.
    """

    since: Annotated[str, Meta(min_length=1, max_length=40)] = "0"
    processes: Annotated[int, Meta(ge=1, le=64)] | None = None


class CellLine(Struct, frozen=True, kw_only=True):
    """Where the project lives: a database without its password; ``null`` for the store's first one."""

    url: str | None
    moving_to: str | None = None


class MoveRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The database to move to, without a password; ``null`` for the store's first one."""

    url: str | None


class KeyLine(Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    project: str
    scope: Scope
    name: str
    approves: bool
    """Whether it may answer questions of agents, as ``name``."""
    created_at: str


class KeyList(Struct, frozen=True, kw_only=True):
    """The keys of a project, oldest first."""

    keys: tuple[KeyLine, ...]


class NewKeyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scope of a new key, a name for it, and whether it may answer questions of agents as that name."""

    scope: Scope = "write"
    name: str = ""
    approves: bool = False


class CreatedKey(Struct, frozen=True, kw_only=True):
    """A new key. ``token`` is shown only once."""

    key: KeyLine
    token: str


@endpoint("GET", "/store/stats", tag="store")
def get_stats(call: Call[StatsQuery, None]) -> Stats:
    """Return the size of the project and its growth by day."""
    return call.store.stats(exact=call.query.exact)


@endpoint("GET", "/store/growth", tag="store")
def get_growth(call: Call[GrowthQuery, None]) -> Growth:
    """Return the growth of the store by day, with the trend."""
    return call.store.growth(last_days=call.query.last_days)


@endpoint("POST", "/store/verify", tag="store", domain="maintenance")
def verify_store(call: Call[VerifyQuery, None]) -> Verification:
    """Rehash all content and check every link. Changes nothing but the position of ``since=last``."""
    query = call.query
    processes = None if query.processes is None else min(query.processes, os.cpu_count() or 1)
    since = parse_since(query.since, now_us=call.store.clock.now_us())
    return call.store.verify(since=since, processes=processes)


@endpoint("GET", "/store/seals", tag="store", domain="maintenance")
def list_seals(call: Call[None, None]) -> SealList:
    """List the seals over the history of the project, oldest first."""
    return SealList(seals=tuple(call.store.audit.seals()))


@endpoint("GET", "/store/seals/{number}", tag="store", domain="maintenance")
def get_seal(call: Call[None, None]) -> Seal:
    """Return a seal with the list of its commits, to publish it."""
    if not call.path["number"].isdecimal():
        raise NotFound(f"seal {call.path['number']!r} not found; seals are numbered from 1")
    return call.store.audit.export(int(call.path["number"]))


@endpoint("POST", "/store/seals", tag="store", domain="maintenance")
def make_seal(call: Call[None, SealRequest]) -> NewSeal:
    """Seal what was committed since the last seal. Publish it where the operator cannot rewrite it."""
    return NewSeal(
        seal=call.store.audit.seal(
            min_commits=call.body.min_commits, max_age_seconds=call.body.max_age_seconds
        )
    )


@endpoint("POST", "/store/seals/verify", tag="store", domain="maintenance")
def verify_seals(call: Call[None, PublishedSeals]) -> AuditReport:
    """Check the project against published seals, and say which rows differ. Changes nothing."""
    return call.store.audit.verify(call.body.against, key=call.body.key)


@endpoint("GET", "/store/proofs/{event}", tag="store", domain="maintenance")
def prove_event(call: Call[None, None]) -> Proof:
    """Return the evidence that an event is part of the sealed history."""
    return call.store.audit.prove(call.path["event"])


@endpoint("POST", "/store/gc", tag="store", domain="maintenance")
def collect_garbage(call: Call[None, Sweep]) -> Collection:
    """Drop what the rule does not keep, then remove unreachable data. A dry run by default."""
    body = call.body
    keep = None if body.keep is None else Keep(**structs.asdict(body.keep))
    return call.store.gc(keep=keep, dry_run=body.dry_run, grace_seconds=body.grace_seconds)


@endpoint("POST", "/store/forget", tag="store", domain="maintenance")
def forget_in_store(call: Call[None, Selection]) -> Forgotten:
    """Permanently erase a thread, a namespace or a scope."""
    body = call.body
    return call.store.forget(
        thread=body.thread, namespace=body.namespace, scope=body.scope, cascade=body.cascade
    )


@endpoint("GET", "/store/archive", tag="store")
def get_archive(call: Call[None, None]) -> Archive:
    """Return the archived days: Parquet files in the blob store, which other programs may read."""
    return call.store.archived()


@endpoint("POST", "/store/archive", tag="store", domain="maintenance")
def archive_days(call: Call[None, ArchiveOrder]) -> Archived:
    """Move what runs recorded on finished days into Parquet files. It stays readable here."""
    try:
        return call.store.archive(before=call.body.before)
    except MissingExtra:
        raise
    except Unsupported as error:  # this server's store has no blob store
        raise InvalidInput(str(error)) from None


@endpoint("POST", "/store/query", tag="store", scope="read")
def query_runs(call: Call[None, SqlRequest]) -> SqlRows:
    """Answer a SELECT over all runs of the project, live and archived. Rows, time and memory are bounded."""
    body = call.body
    found = call.store.query(body.sql, body.params, max_rows=body.max_rows, seconds=body.seconds)
    return SqlRows(
        columns=found.columns,
        types=found.types,
        rows=tuple(json_rows(found)),
        truncated=found.truncated,
        seconds=found.seconds,
    )


@endpoint("POST", "/store/reindex", tag="store", domain="maintenance")
def reindex_store(call: Call[None, None]) -> Empty:
    """Rebuild the roll-ups and the search index."""
    call.store.reindex()
    return OK


@endpoint("GET", "/store/cell", tag="store", domain="maintenance")
def get_cell(call: Call[None, None]) -> CellLine:
    """Return the database that the project lives in, and the one that it is moving to."""
    cell = call.store.cells().get(call.store.space)
    if cell is None:
        return CellLine(url=None)
    return CellLine(
        url=redacted(cell.url) or None,
        moving_to=None if cell.to is None else redacted(cell.to) or "the store's first database",
    )


@endpoint("POST", "/store/move", tag="store", domain="maintenance")
def move_project(call: Call[None, MoveRequest]) -> MoveReport:
    """Move the project to another PostgreSQL database while it is used; writers wait under a second.

    Only for the operator (the key of the server's settings): the server connects with its own credentials.
    """
    if call.access.person is not None:
        raise Forbidden("only the operator may move a project; use the key of TREERING_API_KEY of the server")
    try:
        return call.store.move_project(call.body.url)
    except Unsupported as error:  # this server's store is no PostgreSQL store
        raise InvalidInput(str(error)) from None


@endpoint("GET", "/keys", tag="keys")
def list_keys(call: Call[None, None]) -> KeyList:
    """List the keys of this project."""
    return KeyList(keys=tuple(map(_key_line, _project_keys(call))))


@endpoint("POST", "/keys", tag="keys", status=201)
def create_key(call: Call[None, NewKeyRequest]) -> CreatedKey:
    """Create a key for this project. Once a key exists, every request needs one."""
    made = _api_keys(call).create(
        project=call.access.project,
        scope=call.body.scope,
        name=call.body.name,
        approves=call.body.approves,
    )
    return CreatedKey(key=_key_line(made.key), token=made.token)


@endpoint("DELETE", "/keys/{id}", tag="keys")
def revoke_key(call: Call[None, None]) -> Empty:
    """Revoke a key of this project."""
    if call.path["id"] not in {each.id for each in _project_keys(call)}:
        raise NotFound(f"key {call.path['id']!r} not found in this project; GET /keys lists its keys")
    _api_keys(call).revoke(call.path["id"])
    return OK


ENDPOINTS: Final = (
    get_stats,
    get_growth,
    verify_store,
    list_seals,
    get_seal,
    make_seal,
    verify_seals,
    prove_event,
    collect_garbage,
    get_archive,
    archive_days,
    query_runs,
    forget_in_store,
    reindex_store,
    get_cell,
    move_project,
    list_keys,
    create_key,
    revoke_key,
)


def _api_keys(call: Call[None, None] | Call[None, NewKeyRequest]) -> Keys:
    return Keys(call.store.engine, clock=call.store.clock)


def _project_keys(call: Call[None, None]) -> list[Key]:
    return [each for each in _api_keys(call).list() if each.project == call.access.project]


def _key_line(key: Key) -> KeyLine:
    return KeyLine(
        id=key.id,
        project=key.project,
        scope=key.scope,
        name=key.name,
        approves=key.approves,
        created_at=to_iso(key.created_at_us),
    )
