"""Opening a store: the one place that wires a URL to an engine and a blob store.

Every kind of store is one row in `_ENGINES`: the scheme that it answers to and a function that opens it. The
engine's module is imported by that function, so a store that is not used costs nothing, and one whose driver
is not installed says which extra to install. **Invariant:** no message shows a secret; URLs are shown as
`redacted` gives them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from treering.core.clock import Clock, SystemClock
from treering.core.engine import Engine
from treering.core.ids import check_space
from treering.core.storage import Blobs
from treering.errors import InvalidInput, MissingExtra, NotFound, Unreachable, Unsupported
from treering.maintenance.stats import RESERVED
from treering.store import Store

if TYPE_CHECKING:
    from treering.async_opening import Opening


# -----------------------------------------------------------------------------------------------------------
# Is there a store, and of which version? Looked up without making or changing anything.
#
# Opening a store makes it, and migrates it. Where that is not wanted (a command that only reads, a report of
# what a migration did) this looks first. **Invariant:** "not there" is said only when it is certain; whatever
# else is wrong is left to opening, which has the better words for it.


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a store is there, and the version of its tables if that could be read."""

    there: bool
    version: str | None = None


def in_folder(folder: Path) -> Presence:
    """Look into the folder of a local store. Nothing in this process may have it open."""
    import sqlite3
    from contextlib import closing

    from treering.engines.sql.schema import SQLITE_FILE

    file = folder / SQLITE_FILE
    if not file.is_file():
        return Presence(there=False)
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=60)) as connection:
            for (version,) in connection.execute(_VERSION):
                return Presence(there=True, version=str(version))
    except sqlite3.Error:
        pass
    return Presence(there=True)


def in_postgres(url: str) -> Presence:
    """Look into a PostgreSQL database."""
    try:
        import psycopg
    except ImportError:
        return Presence(there=True)
    try:
        with psycopg.connect(url) as connection:
            for (version,) in connection.execute(_VERSION):
                return Presence(there=True, version=str(version))
    except psycopg.errors.UndefinedTable:
        return Presence(there=False)
    except psycopg.Error:
        pass
    return Presence(there=True)


_VERSION: Final = "SELECT version_num FROM alembic_version"


# -----------------------------------------------------------------------------------------------------------

Durability = Literal["full", "fast"]
"""``full`` survives power loss; ``fast`` survives SIGKILL and may lose the last moments on power loss."""

DEFAULT_FOLDER: Final = ".treering"
BLOBS_FOLDER: Final = "blobs"
"""Where a local store keeps its packs, unless it is told otherwise."""
ENVIRONMENT: Final = "TREERING_URL"
SLOW_MS: Final = "TREERING_SLOW_MS"
"""From how many milliseconds on a call of the engine is logged (``treering.slow``); not set: none."""
KEY_ENVIRONMENT: Final = "TREERING_API_KEY"


def open(
    url: str | Path | None = None,
    *,
    durability: Durability = "full",
    blobs: str | Blobs | None = None,
    namespace: str | None = None,
    api_key: str | None = None,
) -> Store:
    """Open a store, and make it if it is not there yet.

    ``url`` is a folder, ``sqlite:///folder``, ``postgresql://...``, ``memory:``, or ``https://...`` for a
    treering server; without it, the environment's TREERING_URL or ``./.treering``. ``namespace`` names the
    space (the tenant; on a server, a space inside of the key's project). ``blobs`` is where packs of large
    objects go instead of beside the database; give it every time. ``api_key`` opens a server; without it,
    TREERING_API_KEY.
    """
    place = locate(url)
    if durability not in get_args(Durability):
        raise InvalidInput(f"durability={durability!r} is not acceptable; use 'full' or 'fast'")
    if api_key is not None and place.scheme not in _REMOTE:
        raise InvalidInput(f"api_key goes with an https:// store, not with {place.shown}; leave it out")
    space = check_space("default" if namespace is None else namespace)
    if space.startswith(RESERVED):
        raise InvalidInput(f"namespaces that begin with {RESERVED!r} are treering's own; choose another one")
    engine = _ENGINES[place.scheme](
        place, _Wanted(durability=durability, blobs=blobs, clock=SystemClock(), api_key=api_key)
    )
    return Store(_timed(engine), space=space, folder=place.folder, opener=open)


def open_existing(
    url: str | Path | None = None, *, blobs: str | Blobs | None = None, namespace: str | None = None
) -> Store:
    """Open a store that is there; `NotFound` instead of a new one."""
    place = locate(url)
    if not look(place).there:
        raise NotFound(f"there is no store in {place.shown}; name yours with --store or {ENVIRONMENT}")
    return open(url, blobs=blobs, namespace=namespace)


def migrate(url: str | Path | None = None, *, blobs: str | Blobs | None = None) -> Migrated:
    """Bring the tables of a store to this version. Opening does it; this also says what changed."""
    place = locate(url)
    if place.scheme == "memory":
        raise Unsupported("a memory: store has no tables to migrate; name another one with --store")
    if place.scheme in _REMOTE:
        raise Unsupported(
            f"{place.shown} is a server, which migrates its own store when it starts; upgrade it"
        )
    before = look(place).version
    with open_existing(url, blobs=blobs) as store:
        from treering.engines.sql.schema import SCHEMA_VERSION

        return Migrated(url=store.url, before=before or SCHEMA_VERSION, after=SCHEMA_VERSION)


def open_async(
    url: str | Path | None = None,
    *,
    durability: Durability = "full",
    blobs: str | Blobs | None = None,
    namespace: str | None = None,
    api_key: str | None = None,
) -> Opening:
    """Open a store for asyncio: use it as an async context manager, or await it and `close` the store.

    The arguments are those of `open`.
    """
    from treering.async_opening import Opening  # brings asyncio, which a sync store does not need

    return Opening(
        lambda: open(url, durability=durability, blobs=blobs, namespace=namespace, api_key=api_key)
    )


def _timed(engine: Engine) -> Engine:
    given = os.environ.get(SLOW_MS)
    if not given:
        return engine
    try:
        threshold_ms = float(given)
    except ValueError:
        engine.close()
        raise InvalidInput(f"{SLOW_MS}={given!r} is no number of milliseconds; use one like 200") from None
    from treering.engines.slow_log import log_slow_queries

    return log_slow_queries(engine, threshold_ms)


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """Which version the tables of a store had, and which one they have now."""

    url: str
    before: str
    after: str


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL means: which engine, and for a local store which folder."""

    scheme: str
    url: str
    folder: Path | None = None

    @property
    def shown(self) -> str:
        """The place in words that may stand in a message."""
        return str(self.folder) if self.folder is not None else redacted(self.url)


def locate(url: str | Path | None) -> Place:
    """Read a URL (``None``: the environment's, or the default folder)."""
    if url is None:
        url = os.environ.get(ENVIRONMENT) or DEFAULT_FOLDER
    if isinstance(url, Path):
        return _folder(url)
    if type(url) is not str or not url.strip() or "\0" in url:
        raise InvalidInput(f"{ascii(url)[:80]} is not a store; {_FORMS}")
    found = _SCHEME.match(url)
    if found is None:
        return _folder(Path(url))
    scheme = found["scheme"].lower()
    if scheme == "sqlite" and found["slashes"] and len(url) > found.end() + 1 and url[found.end()] == "/":
        return _folder(Path(url[found.end() + 1 :]))
    if scheme == "sqlite" or scheme not in _ENGINES or not (found["slashes"] or scheme == "memory"):
        raise InvalidInput(f"{redacted(url)[:200]!r} is not a store; {_FORMS}")
    return Place(scheme=scheme, url=url)


def look(place: Place) -> Presence:
    """Whether a store is there and of which version, without opening it."""
    if place.folder is not None:
        return in_folder(place.folder)
    if place.scheme in _POSTGRES:
        return in_postgres(place.url)
    return Presence(there=True)


def redacted(url: str) -> str:
    """A URL without its password and without query values that look like secrets."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return url
    place, question, query = rest.partition("?")
    user, at, host = place.rpartition("@")
    name, colon, _ = user.partition(":")
    return "".join(
        (scheme, slashes, name, ":***" if colon else "", at, host, question, _SECRET.sub(r"\1***", query))
    )


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """How to open, apart from where."""

    durability: Durability
    blobs: str | Blobs | None
    clock: Clock
    api_key: str | None


def _open_memory(_: Place, wanted: _Wanted) -> Engine:
    from treering.engines.memory.engine import MemoryEngine

    if wanted.blobs is not None:
        raise InvalidInput("a memory: store keeps its objects in memory; leave blobs out, or open a folder")
    return MemoryEngine(clock=wanted.clock)


def _open_folder(place: Place, wanted: _Wanted) -> Engine:
    from treering.blobs.folder import FolderBlobs
    from treering.engines.sqlite.engine import open_sqlite

    folder = place.folder or Path(DEFAULT_FOLDER)
    blobs = _open_blobs(wanted.blobs) or FolderBlobs(folder / BLOBS_FOLDER, clock=wanted.clock)
    return open_sqlite(folder, durability=wanted.durability, blobs=blobs, clock=wanted.clock)


def _open_postgres(place: Place, wanted: _Wanted) -> Engine:
    try:
        from treering.engines.postgres import open_postgres
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"psycopg", "psycopg_pool"}:
            raise MissingExtra("a postgresql:// store", "postgres") from error
        raise
    return open_postgres(place.url, blobs=_open_blobs(wanted.blobs), clock=wanted.clock)


def _open_remote(place: Place, wanted: _Wanted) -> Engine:
    from treering.engines.remote.engine import open_remote

    if wanted.blobs is not None:
        raise InvalidInput(
            f"{place.shown} is a server, which keeps objects where it was told to; leave blobs out"
        )
    return open_remote(place.url, api_key=wanted.api_key or os.environ.get(KEY_ENVIRONMENT) or None)


_ENGINES: Final[dict[str, Callable[[Place, _Wanted], Engine]]] = {
    "memory": _open_memory,
    "sqlite": _open_folder,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
    "https": _open_remote,
    "http": _open_remote,
}
_POSTGRES: Final = frozenset({"postgresql", "postgres"})
_REMOTE: Final = frozenset({"https", "http"})
_FORMS: Final = (
    "accepted are a folder (./.treering), sqlite:///folder, sqlite:////absolute/folder, "
    "postgresql://user@host/database, https://server and memory: (write ./a:b for a folder with a colon)"
)
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>//)?")
_SECRET: Final = re.compile(r"((?:^|&)[^=&]*(?:pass|secret|token|key|sig)[^=&]*=)[^&]*", re.IGNORECASE)


def _folder(path: Path) -> Place:
    if "\0" in str(path):
        raise InvalidInput(f"{ascii(str(path))[:80]} cannot be a store: no path has a NUL in it")
    try:
        folder = path.expanduser().absolute()
        if folder.exists() and not folder.is_dir():
            raise InvalidInput(f"{folder} is a file; a store is a folder, choose another path")
    except (OSError, RuntimeError) as error:  # RuntimeError: ~user of nobody
        kind = Unreachable if isinstance(error, PermissionError) else InvalidInput
        reason = getattr(error, "strerror", None) or error
        raise kind(f"{str(path)[:200]} cannot be a store: {reason}; choose another folder") from error
    return Place(scheme="sqlite", url=f"sqlite:///{folder}", folder=folder)


def _open_blobs(blobs: str | Blobs | None) -> Blobs | None:
    if not isinstance(blobs, str):
        return blobs
    from treering.blobs.location import open_blobs

    return open_blobs(blobs)
