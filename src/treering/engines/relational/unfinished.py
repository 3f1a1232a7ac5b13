"""The note that an erasure leaves while it is not finished.

Rows go in transactions, but pack files are written anew after them and old pages are wiped last. Should the
process die in between, the note (a row of ``meta``) still says which packs hold bytes of deleted objects,
and, where rows went in several transactions, that there may be objects which nothing leads to any more. The
next erasure in the same space takes over from there. **Invariant:** a pack that holds erased bytes is either
gone or named in a note that was committed together with the deletion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.engines.relational.session import Session


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """What is left to do."""

    packs: tuple[int, ...] = ()
    """Packs that hold bytes of deleted objects."""
    stored_before_us: int = 0
    """Objects stored up to then that nothing leads to may be of an erasure that was cut short."""
    secure: bool = False
    """Whether the storage is to be wiped."""


def read_note(session: Session, space: int) -> Unfinished | None:
    """What an erasure in this space has left to do, if there is one."""
    rows = session.rows("SELECT value FROM meta WHERE key = ?", (_key(space),))
    return msgspec.json.decode(rows[0][0], type=Unfinished) if rows else None


def write_note(
    session: Session,
    space: int,
    *,
    packs: Iterable[int] = (),
    stored_before_us: int = 0,
    secure: bool = False,
) -> None:
    """Note that there is something left to do, besides what is noted already."""
    known = read_note(session, space) or Unfinished()
    note = Unfinished(
        packs=tuple(sorted({*known.packs, *packs})),
        stored_before_us=max(known.stored_before_us, stored_before_us),
        secure=known.secure or secure,
    )
    session.run(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (_key(space), msgspec.json.encode(note).decode()),
    )


def drop_note(session: Session, space: int) -> None:
    """Nothing is left to do."""
    session.run("DELETE FROM meta WHERE key = ?", (_key(space),))


def _key(space: int) -> str:
    return f"erasing.{space}"
