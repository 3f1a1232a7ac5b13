"""The ledger: journal events that looking after a store leaves behind.

Nothing is removed without a trace: retention, `forget` and their like each append one event here, in a
scope of its own, so that forgetting a thread never takes the record of it along.
"""

from __future__ import annotations

from typing import Any, Final

from treering.core.batch import Draft, Event
from treering.core.clock import Clock
from treering.core.content import Content
from treering.core.encoding import encode_json
from treering.core.engine import Engine
from treering.core.ids import Scope

CARE_SCOPE: Final = str(Scope("", "store", "care"))


def record(
    engine: Engine, space: str, *, kind: str, data: dict[str, Any], clock: Clock, body: Content | None = None
) -> str:
    """Append one event and give back its id; ``body`` is for what is too long for a row."""
    draft = Draft(space)
    address = None if body is None else draft.put(body, scope=CARE_SCOPE)
    draft.event(
        Event(
            id=draft.id,
            kind=kind,
            ts_us=clock.now_us(),
            scope=CARE_SCOPE,
            data=encode_json(data),
            body=address,
        )
    )
    engine.commit(draft.batch())
    return draft.id
