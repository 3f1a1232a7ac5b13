"""Forgetting: remove a thread, a scope or a whole namespace, and say so without saying whom.

Everything under an erasure scope goes, and the storage is wiped of what deletes usually leave behind (see
`Engine.erase`). Afterwards the journal gets one ``forget`` event. **Invariant:** that event holds counts and
a salted, slow hash of what was asked for, never the name: whoever knows the name can prove that it was
forgotten (`answers_to`), nobody can read it off.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import scrypt
from hmac import compare_digest
from typing import Final, Literal

import msgspec

from treering.core.clock import Clock
from treering.core.engine import Engine
from treering.core.ids import RUN_MOVED, Scope, check_id, namespace_prefix, new_id, parse_scope
from treering.core.paging import each_record
from treering.core.query import Erasure, EventQuery
from treering.errors import InvalidInput, NotFound
from treering.maintenance.audit_events import record

_PAGE: Final = 1000


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of `forget`: what was removed, what had to stay and why, and how absence was proven.

    ``proof="bytes"`` means that the files were wiped; ``"query"`` that no query finds it any more (what a
    database server keeps in its own logs and backups is out of reach). ``event`` is the id of the journal
    event that records it.
    """

    scopes: int
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
    """What to forget: one scope, or every scope of a namespace."""

    what: Literal["thread", "namespace", "scope"]
    text: str


def selection(*, thread: str | None, namespace: str | None, scope: str | None) -> Selection:
    """Exactly one thing to forget; ``namespace`` beside ``thread`` says where the thread lives."""
    if scope is not None:
        if thread is not None or namespace is not None:
            raise InvalidInput("forget takes a scope alone; leave thread and namespace out")
        return Selection(what="scope", text=str(parse_scope(scope)))
    if thread is not None:
        check_id(thread, "thread")
        if namespace is not None:
            check_id(namespace, "namespace")
        return Selection(what="thread", text=str(Scope(namespace or "", "thread", thread)))
    if namespace is not None:
        return Selection(what="namespace", text=namespace_prefix(check_id(namespace, "namespace")))
    raise InvalidInput("forget needs to know what: pass thread=, namespace= or scope=")


def forget(engine: Engine, space: str, chosen: Selection, *, cascade: bool, clock: Clock) -> Forgotten:
    """Erase what was chosen and record that it happened."""
    scopes = _scopes(engine, space, chosen)
    erased = engine.erase(space, Erasure(scopes=scopes, cascade=cascade, secure=True))
    salt = new_id()
    digest = _digest(salt, chosen.text)
    counts = {
        "scopes": len(scopes),
        "events": erased.events,
        "refs": erased.refs,
        "lists": erased.lists,
        "bodies": erased.bodies,
        "texts": erased.texts,
        "objects": erased.objects,
        "bytes": erased.bytes,
    }
    named = {
        "what": chosen.what,
        "salt": salt,
        "digest": digest,
        "kept": len(erased.kept),
        "proof": erased.proof,
    }
    event = record(engine, space, kind="forget", data=named | counts, clock=clock)
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
    """Whether a receipt or ``forget`` event is about this thread, namespace or scope."""
    chosen = selection(thread=thread, namespace=namespace, scope=scope)
    return compare_digest(_digest(salt, chosen.text), digest)


def _scopes(engine: Engine, space: str, chosen: Selection) -> tuple[str, ...]:
    """The scopes that exist among the chosen ones. All at once: a fork may cross them."""
    found: list[str] = []
    after: str | None = None
    while page := engine.scan_scopes(space, chosen.text, after=after, limit=_PAGE):
        found += page if chosen.what == "namespace" else [each for each in page if each == chosen.text]
        if chosen.what != "namespace" or len(page) < _PAGE:
            break  # an exact name sorts before everything that it is a prefix of
        after = page[-1]
    if not found:
        with suppress(NotFound):  # an erasure that was cut short may have come as far as the name
            engine.erase(space, Erasure(secure=True))
        raise NotFound(
            f"nothing is stored under {chosen.what} {chosen.text!r} in space {space!r}; "
            "check its spelling, its namespace and the store"
        )
    return (*found, *_moved(engine, space, chosen)) if chosen.what == "thread" else tuple(found)


def _moved(engine: Engine, space: str, chosen: Selection) -> list[str]:
    """The scopes of runs that began before it was known that they are of this thread."""
    namespace = parse_scope(chosen.text).namespace
    moved: dict[str, None] = {}
    for each in each_record(engine, space, EventQuery(scope=chosen.text, kinds=(RUN_MOVED,))):
        own = str(Scope(namespace, "run", each.event.run or ""))
        if engine.scan_scopes(space, own, limit=1) == [own]:
            moved[own] = None
    return list(moved)


def _digest(salt: str, text: str) -> str:
    # Names are often guessable (a phone number), so each guess is made to cost tens of milliseconds.
    return scrypt(text.encode(), salt=salt.encode(), n=1 << 14, r=8, p=1, dklen=16).hex()
