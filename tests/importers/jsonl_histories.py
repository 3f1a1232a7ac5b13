"""Threads to export and import, and how two stores are compared."""

from __future__ import annotations

import io
from decimal import Decimal

from treering.importers.jsonl_export import export_jsonl
from treering.importers.jsonl_import import import_jsonl


def grow(store):
    """Threads with all that a history can hold: forks, rewinds, odd values, large state, a decision."""
    alice = store.thread("support/alice")
    files = {f"file {number}": "x" * 600 for number in range(10)}
    alice.append({"role": "user", "content": "Where is my refund?"}, state={"tries": 1, "files": files})
    draft = alice.append(
        {"role": "assistant", "content": [{"type": "text", "text": "Monday."}], "cost": Decimal("1.10")},
        b"\x00\xff",
        state={"tries": 2, "files": {**files, "file 3": "changed", "new": (1, 2)}},
        note="first draft",
        tags=["a", "b"],
        metadata={"model": "m", "$odd": {"$decimal": 1}},
    )
    alice.append(
        "only text", {"$decimal": "not a tag"}, state={"files": {"file 3": "y" * 5000}, "tries": None}
    )
    alice.rewind(draft.id)
    bolder = alice.fork("support/alice-bolder")
    bolder.append({"role": "assistant", "content": "I am sending it again." * 400})
    deep = bolder.fork("deep", at=0)
    deep.append(1, 2.5, None, [], {})
    alice.checkpoint(messages=["begun", "anew"], lists={"log": ["x", "y"]})
    alice.checkpoint(lists={"log": ["x", "y", "z"]})
    alice.interrupt({"tool": "pay"}, interrupt_id="pay-1")
    store.thread("notes", namespace="bob/x").append({"role": "user", "content": "mine"})
    return store


def exported(store, *names, namespace=None):
    """The lines of some threads, or of all."""
    file = io.BytesIO()
    threads = sorted(store.threads(namespace=namespace), key=lambda each: each.created_at_us)
    export_jsonl(store, [each for each in threads if not names or each.id in names], file.write)
    return file.getvalue()


def bring(data, store, **options):
    """Import such lines; how many of each kind there were, were new, and were known."""
    report = import_jsonl(io.BytesIO(data), store, **options)
    return {each.holds: (each.found, each.new, each.known) for each in report.files}


def portrait(store, *, ids=None):
    """All that can be read of the threads of a store."""
    result = {}
    for info in store.threads(namespace=None):
        if ids is not None and info.id not in ids:
            continue
        thread = store.thread(info.id, info.namespace or None)
        result[info.id, info.namespace] = {
            "head": info.head,
            "created": info.created_at_us,
            "line": [checkpoint.id for checkpoint in thread.history()],
            "all": [
                (checkpoint.to_dict(), checkpoint.record.lists.keys())
                for checkpoint in thread.history(everything=True)
            ],
        }
    return result
