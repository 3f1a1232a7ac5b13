"""Permissions: the scope that a key needs, by the domain of what it reads or changes.

A domain is what belongs together: budgets, alerts, schedules. It has REST endpoints (their tag), refs, kinds
of events and leases. `DOMAINS` lists those that ask for more than the default, which is ``read`` for reading
and ``write`` for changing. REST endpoints take their scope from it, and every batch, ref and lease that comes
in through the gateway is checked against it. **Invariant:** what a key may not do by REST, it may not do with
``treering.open("https://...")`` either, because both ask this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from treering.approvals.ballots import BALLOTS, RULES
from treering.core.ids import MAINTENANCE_SCOPE
from treering.limits.budgets import BUDGETS
from treering.limits.webhooks import ALERT_REFS, WEBHOOKS
from treering.maintenance.audit import SEAL_REF
from treering.maintenance.stats import MEASURED_REF
from treering.maintenance.verify import VERIFIED_REF
from treering.server.auth import SCOPES, Access, Permission, Scope
from treering.threads.line_files import FILE_REFS

if TYPE_CHECKING:
    from treering.core.batch import Batch
    from treering.core.engine import Engine
    from treering.core.query import ListQuery
    from treering.core.records import Ref, RefPage


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """A domain, and the scopes that reading and changing it require.

    ``refs`` are prefixes of refs and of the leases named like them, ``kinds`` prefixes of event kinds, and
    ``scopes`` the scopes of events.
    """

    name: str
    refs: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    read: Scope = "read"
    write: Permission = "write"


DOMAINS: Final = (
    Domain(name="budgets", refs=(BUDGETS,), write="admin"),
    # An address may contain a token, so reading it is restricted as well.
    Domain(name="webhooks", refs=(WEBHOOKS,), read="admin", write="admin"),
    # Not the events: a budget that runs out is reported by the process that notices it, with its own key.
    Domain(name="alerts", refs=(ALERT_REFS,), write="admin"),
    Domain(name="approval-rules", refs=(RULES,), write="admin"),
    Domain(name="approvals", refs=(BALLOTS,), kinds=("approval.",), write="approve"),
    Domain(name="keys", read="admin", write="admin"),
    Domain(name="reruns", write="admin"),
    # The journal's own account of what was erased, and the files beside the store that erasing rewrites.
    Domain(
        name="maintenance",
        refs=(FILE_REFS, SEAL_REF, VERIFIED_REF, MEASURED_REF),
        scopes=(MAINTENANCE_SCOPE,),
        write="admin",
    ),
)
"""The first domain with a matching prefix applies."""

_BY_NAME: Final = {each.name: each for each in DOMAINS}
_REF_PREFIXES: Final = tuple((prefix, each) for each in DOMAINS for prefix in each.refs)
_RESTRICTED_REFS: Final = tuple(prefix for prefix, _ in _REF_PREFIXES)
_RESTRICTED_KINDS: Final = tuple(prefix for each in DOMAINS for prefix in each.kinds)
_RESTRICTED_SCOPES: Final = frozenset(scope for each in DOMAINS for scope in each.scopes)
_UNREADABLE: Final = tuple(prefix for prefix, each in _REF_PREFIXES if each.read == "admin")


def scope_of(domain: str, *, changes: bool) -> Permission:
    """Return the permission that reading or changing a domain requires."""
    found = _BY_NAME.get(domain, Domain(name=domain))
    return found.write if changes else found.read


def check_batch(access: Access, batch: Batch) -> None:
    """Raise `Forbidden` if a batch changes something that the caller may not change."""
    if access.scope == SCOPES[-1]:
        return
    for change in batch.refs:
        check_name(access, change.name)
    for event in batch.events:
        if event.kind.startswith(_RESTRICTED_KINDS) or event.scope in _RESTRICTED_SCOPES:
            domain = next(
                each
                for each in DOMAINS
                if event.scope in each.scopes or (each.kinds and event.kind.startswith(each.kinds))
            )
            access.check(domain.write, to=f"write events of kind {event.kind[:80]!r} to {event.scope[:80]!r}")


def check_name(access: Access, name: str) -> None:
    """Raise `Forbidden` if the caller may not change this ref or take this lease."""
    if name.startswith(_RESTRICTED_REFS):
        domain = next(each for prefix, each in _REF_PREFIXES if name.startswith(prefix))
        access.check(domain.write, to=f"change {domain.name} ({name[:80]!r})")


def check_read(access: Access, names: Iterable[str]) -> None:
    """Raise `Forbidden` if the caller may not read one of these refs."""
    if access.scope != SCOPES[-1]:
        for name in names:
            if name.startswith(_UNREADABLE):
                domain = next(each for prefix, each in _REF_PREFIXES if name.startswith(prefix))
                access.check(domain.read, to=f"read {domain.name}")


def list_refs(
    access: Access, engine: Engine, space: str, query: ListQuery, *, after: str | None, limit: int
) -> RefPage:
    """Return a page of a list, without refs that the caller may not read."""
    page = engine.list_refs(space, query, after=after, limit=limit)
    if access.scope == SCOPES[-1]:
        return page
    refs = tuple(ref for ref in page.refs if not ref.name.startswith(_UNREADABLE))
    return msgspec.structs.replace(page, refs=refs)


def scan_refs(
    access: Access, engine: Engine, space: str, prefix: str, *, after: str | None, limit: int
) -> list[Ref]:
    """Return a page of refs, without those that the caller may not read."""
    check_read(access, (prefix,))
    if access.scope == SCOPES[-1] or not any(each.startswith(prefix) for each in _UNREADABLE):
        return engine.scan_refs(space, prefix, after=after, limit=limit)
    found: list[Ref] = []
    while len(found) < limit:  # a short page means to the client that there are no more
        page = engine.scan_refs(space, prefix, after=after, limit=limit)
        found += (ref for ref in page if not ref.name.startswith(_UNREADABLE))
        if len(page) < limit:
            break
        after = page[-1].name
    return found[:limit]
