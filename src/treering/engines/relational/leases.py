"""Leases: who may do a thing now.

Volatile rows on the database's own clock, outside the journal. The token grows with every change of
holder and is never taken back, so that a writer who slept through the end of its lease is recognised
at its next commit, not by its own clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treering.core.records import Lease

if TYPE_CHECKING:
    from treering.engines.relational.session import Session


def claim(
    session: Session, space: int, space_name: str, name: str, *, holder: str, now_us: int, until_us: int
) -> Lease | None:
    """Take, renew, or fail to take a lease."""
    rows = session.rows(
        "SELECT holder, token, expires_at_us FROM lease WHERE space = ? AND name = ?", (space, name)
    )
    token = 1
    if rows:
        held_by, token, expires_at_us = rows[0]
        held = held_by is not None and expires_at_us > now_us
        if held and held_by != holder:
            return None
        if not held:
            token += 1
        session.run(
            "UPDATE lease SET holder = ?, token = ?, expires_at_us = ? WHERE space = ? AND name = ?",
            (holder, token, until_us, space, name),
        )
    else:
        session.run(
            "INSERT INTO lease (space, name, holder, token, expires_at_us) VALUES (?, ?, ?, ?, ?)",
            (space, name, holder, token, until_us),
        )
    return Lease(space=space_name, name=name, holder=holder, token=token, expires_at_us=until_us)


def heartbeat(session: Session, space: int, lease: Lease, *, now_us: int, until_us: int) -> Lease | None:
    """Prolong a lease that is still held."""
    changed = session.run(
        "UPDATE lease SET expires_at_us = ? WHERE space = ? AND name = ? AND token = ? AND expires_at_us > ?",
        (until_us, space, lease.name, lease.token, now_us),
    )
    if not changed:
        return None
    return Lease(
        space=lease.space, name=lease.name, holder=lease.holder, token=lease.token, expires_at_us=until_us
    )


def release(session: Session, space: int, lease: Lease) -> None:
    """Give a lease back; its token stays used."""
    session.run(
        "UPDATE lease SET holder = NULL, expires_at_us = 0 WHERE space = ? AND name = ? AND token = ?",
        (space, lease.name, lease.token),
    )
