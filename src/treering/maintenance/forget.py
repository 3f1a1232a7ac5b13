"""Forget: erase a thread, a scope or a whole namespace, and record that without its name.

Everything in the erasure scopes is removed, and bytes that deletes usually leave behind are wiped (see
`Engine.erase`). Then one ``forget`` event is appended to the journal. **Invariant:** that event holds counts
and a salted, slow hash of the name, never the name itself: someone who knows the name can prove that it was
forgotten (`answers_to`), but nobody can read it.

Every removal, this one and others, appends such an audit event (`record_audit_event`). The events have a
scope of their own (`MAINTENANCE_SCOPE`), so that forgetting a thread never erases them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import scrypt
from hmac import compare_digest
from typing import Any, Final, Literal

import msgspec

from treering.core.batch import Draft, Event
from treering.core.clock import Clock
from treering.core.content import Content
from treering.core.encoding import encode_json
from treering.core.engine import Engine
from treering.core.ids import (
    MAINTENANCE_SCOPE,
    RUN_MOVED,
    Scope,
    check_id,
    namespace_prefix,
    new_id,
    parse_scope,
)
from treering.core.query import Erasure, EventQuery, each_record
from treering.core.records import Erased
from treering.errors import InvalidInput, NotFound

_PAGE: Final = 1000


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of `forget`: what was removed, what was kept and why, and how absence was proven.

    ``proof="bytes"`` means that the files were wiped, ``"query"`` that no query returns the data any more
    (the logs and backups of a database server are out of reach). ``event`` is the id of the journal event
    that records the erasure.
    """

    scopes: int
    below: int
    """Threads and runs that existed only for the thread, those of its sub-agents, and went with it."""
    events: int
    refs: int
    lists: int
    bodies: int
    texts: int
    objects: int
    bytes: int
    kept: dict[str, str]
    proof: Literal["bytes", "query"]
    event: str
    salt: str
    digest: str


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What to forget: one scope, or all scopes of a namespace."""

    what: Literal["thread", "namespace", "scope"]
    text: str


def selection(*, thread: str | None, namespace: str | None, scope: str | None) -> Selection:
    """Validate what to forget, which must be one thing. With ``thread``, ``namespace`` is its namespace."""
    if scope is not None:
        if thread is not None or namespace is not None:
            raise InvalidInput("scope= cannot be combined with thread= or namespace=")
        return Selection(what="scope", text=str(parse_scope(scope)))
    if thread is not None:
        check_id(thread, "thread")
        if namespace is not None:
            check_id(namespace, "namespace")
        return Selection(what="thread", text=str(Scope(namespace or "", "thread", thread)))
    if namespace is not None:
        return Selection(what="namespace", text=namespace_prefix(check_id(namespace, "namespace")))
    raise InvalidInput("nothing to forget: pass thread=, namespace= or scope=")


def forget(
    engine: Engine,
    space: str,
    selected: Selection,
    *,
    cascade: bool,
    clock: Clock,
    erase: Callable[[Erasure], Erased],
    below: Sequence[str] = (),
) -> Forgotten:
    """Erase the selection and record that in the journal; ``erase`` also erases it outside of the store.

    ``below`` are scopes that exist only for the selected thread, and go with it.
    """
    found = _scopes(engine, space, selected)
    existing = [each for each in below if engine.scan_scopes(space, each, limit=1) == [each]]
    scopes = tuple(dict.fromkeys((*found, *existing)))
    erased = erase(Erasure(scopes=scopes, cascade=cascade, secure=True))
    salt = new_id()
    digest = _digest(salt, selected.text)
    counts = {
        "scopes": len(scopes),
        "below": len(existing),
        "events": erased.events,
        "refs": erased.refs,
        "lists": erased.lists,
        "bodies": erased.bodies,
        "texts": erased.texts,
        "objects": erased.objects,
        "bytes": erased.bytes,
    }
    named = {
        "what": selected.what,
        "salt": salt,
        "digest": digest,
        "kept": len(erased.kept),
        "proof": erased.proof,
    }
    event = record_audit_event(engine, space, kind="forget", data=named | counts, clock=clock)
    return Forgotten(
        **counts, kept=dict(erased.kept), proof=erased.proof, event=event, salt=salt, digest=digest
    )


def answers_to(
    *,
    salt: str,
    digest: str,
    thread: str | None = None,
    namespace: str | None = None,
    scope: str | None = None,
) -> bool:
    """Whether a receipt or ``forget`` event belongs to this thread, namespace or scope."""
    selected = selection(thread=thread, namespace=namespace, scope=scope)
    return compare_digest(_digest(salt, selected.text), digest)


def _scopes(engine: Engine, space: str, selected: Selection) -> tuple[str, ...]:
    """Return the existing scopes of the selection, to erase at once: forks may connect them."""
    found: list[str] = []
    after: str | None = None
    while page := engine.scan_scopes(space, selected.text, after=after, limit=_PAGE):
        found += page if selected.what == "namespace" else [each for each in page if each == selected.text]
        if selected.what != "namespace" or len(page) < _PAGE:
            break  # an exact match sorts before all names with that prefix
        after = page[-1]
    if not found:
        with suppress(NotFound):  # an interrupted erasure may already have removed the name
            engine.erase(space, Erasure(secure=True))
        raise NotFound(
            f"nothing is stored under {selected.what} {selected.text!r} in space {space!r}; "
            "check its spelling, its namespace and the store"
        )
    return (*found, *_moved(engine, space, selected)) if selected.what == "thread" else tuple(found)


def _moved(engine: Engine, space: str, selected: Selection) -> list[str]:
    """Return the scopes of runs that began before their thread was known to be this one."""
    namespace = parse_scope(selected.text).namespace
    moved: dict[str, None] = {}
    for each in each_record(engine, space, EventQuery(scope=selected.text, kinds=(RUN_MOVED,))):
        own = str(Scope(namespace, "run", each.event.run or ""))
        if engine.scan_scopes(space, own, limit=1) == [own]:
            moved[own] = None
    return list(moved)


def _digest(salt: str, text: str) -> str:
    # Names are often guessable (a phone number), so each guess has to cost tens of milliseconds.
    return scrypt(text.encode(), salt=salt.encode(), n=1 << 14, r=8, p=1, dklen=16).hex()


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
