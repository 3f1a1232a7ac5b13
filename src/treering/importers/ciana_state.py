"""Importing what a CianaParrot agent knew of its users: ``cc_user_states.json``.

The sessions go where ``store.state.sessions(UserSession)`` looks for them. A user whom the store knows
already keeps what the store has: it is newer than the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from treering.errors import InvalidInput
from treering.importers.folders import read_json
from treering.importers.report import FileReport
from treering.views.user_sessions import UserSession

if TYPE_CHECKING:
    from pathlib import Path

    from treering.importers.report import Progress
    from treering.store import Store


def load_user_states(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import ``{"123456": {"mode": "claude_code", ...}}``; entries in the default mode are left out."""
    read: Any = read_json(path)
    if not isinstance(read, dict):
        raise InvalidInput(f"{path} is not an object of sessions by user id; nothing was imported")
    entries = cast("dict[str, Any]", read)
    sessions = store.state.sessions(UserSession)
    there = set(sessions.users())
    new = known = 0
    notes: list[str] = []
    for done, (user_id, plain) in enumerate(entries.items(), 1):
        try:
            session = msgspec.convert(plain, UserSession)
        except msgspec.ValidationError as error:
            notes.append(f"user {user_id!r} is no session: {error}")
            continue
        if session.mode == UserSession().mode:
            notes.append(f"user {user_id!r} is in the default mode")
        elif user_id in there:
            known += 1
        else:
            new += 1
            if not dry_run:
                sessions.save(user_id, session)
        if on_progress is not None:
            on_progress(done, len(entries))
    return [
        FileReport(
            path=str(path),
            holds="user states",
            found=len(entries),
            new=new,
            known=known,
            left_out=len(notes),
            note="; ".join(notes[:5]),
        )
    ]
