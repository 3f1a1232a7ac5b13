"""Maintenance of the caller's project: stats, verify, gc, forget, reindex."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct, structs

from treering.core.retention import Keep
from treering.maintenance.forget import Forgotten
from treering.maintenance.gc import Collection
from treering.maintenance.stats import Stats
from treering.maintenance.verify import Verification
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


@endpoint("GET", "/store/stats", tag="store")
def get_stats(call: Call[None, None]) -> Stats:
    """Return the size of the project and its growth by day."""
    return call.store.stats()


@endpoint("POST", "/store/verify", tag="store", scope="admin")
def verify_store(call: Call[None, None]) -> Verification:
    """Rehash all content and check every link. Changes nothing."""
    return call.store.verify()


@endpoint("POST", "/store/gc", tag="store", scope="admin")
def collect_garbage(call: Call[None, Sweep]) -> Collection:
    """Drop what the rule does not keep, then remove unreachable data. A dry run by default."""
    body = call.body
    keep = None if body.keep is None else Keep(**structs.asdict(body.keep))
    return call.store.gc(keep=keep, dry_run=body.dry_run, grace_seconds=body.grace_seconds)


@endpoint("POST", "/store/forget", tag="store", scope="admin")
def forget_in_store(call: Call[None, Selection]) -> Forgotten:
    """Permanently erase a thread, a namespace or a scope."""
    body = call.body
    return call.store.forget(
        thread=body.thread, namespace=body.namespace, scope=body.scope, cascade=body.cascade
    )


@endpoint("POST", "/store/reindex", tag="store", scope="admin")
def reindex_store(call: Call[None, None]) -> Empty:
    """Rebuild the roll-ups and the search index."""
    call.store.reindex()
    return OK


ENDPOINTS: Final = (get_stats, verify_store, collect_garbage, forget_in_store, reindex_store)
