"""Audit events: every removal appends one event to the journal.

The events have a scope of their own (`MAINTENANCE_SCOPE`), so that forgetting a thread never erases them.
"""

from __future__ import annotations

from typing import Any

from treering.core.batch import Draft, Event
from treering.core.clock import Clock
from treering.core.content import Content
from treering.core.encoding import encode_json
from treering.core.engine import Engine
from treering.core.ids import MAINTENANCE_SCOPE


def record_audit_event(
    engine: Engine, space: str, *, kind: str, data: dict[str, Any], clock: Clock, body: Content | None = None
) -> str:
    """Append an event and return its id; ``body`` is for details that are too long for a row."""
    draft = Draft(space)
    address = None if body is None else draft.put(body, scope=MAINTENANCE_SCOPE)
    draft.event(
        Event(
            id=draft.id,
            kind=kind,
            ts_us=clock.now_us(),
            scope=MAINTENANCE_SCOPE,
            data=encode_json(data),
            body=address,
        )
    )
    engine.commit(draft.batch())
    return draft.id
