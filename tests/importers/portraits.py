"""Everything that an import wrote, without where it lies and in which order it came, to be compared."""

from __future__ import annotations

import json

from treering.core.query import EventQuery


def portrait(store, thread):
    events = []
    for record in store.engine.scan(store.space, EventQuery(), limit=10_000).records:
        event = record.event
        data = json.loads(event.data) if event.data else {}
        body = [] if event.body is None else store.timeline.content(event.body)
        source = event.links[data["input"]] if "input_size" in data and event.links else None
        given = [] if source is None else store.timeline.content(source)
        data.pop("input", None)
        columns = (event.id, event.kind, event.ts_us, event.run, event.parent, event.agent, event.name)
        rest = (event.model, event.role, event.status, event.usage, event.cost_nanos, event.duration_us)
        if event.kind != "checkpoint":
            events.append((columns, rest, repr(body), repr(given), repr(data)))
    head = store.thread(thread).head
    messages = [] if head is None else head.messages
    return sorted(events, key=repr), messages, [(run.id, run.status) for run in store.runs.each()]
