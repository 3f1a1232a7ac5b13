"""Open a store: the one place that turns a URL into an engine and a blob store.

Every kind of store is one row in `_ENGINES`: its URL scheme and a function that opens it. That function
imports the engine's module, so an unused engine costs nothing, and one whose driver is missing names the
extra to install.

Opening a store creates it, and migrates it to the current schema. Commands that only read look first, with
`probe`, which changes nothing. **Invariant:** no message shows a secret; URLs pass through `redacted`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

import msgspec

from treering.core.clock import Clock, SystemClock
from treering.core.engine import Engine
from treering.core.ids import check_space
from treering.core.storage import Blobs
from treering.errors import InvalidInput, MissingExtra, NotFound, Unreachable, Unsupported
from treering.lake.engine import LakeEngine
from treering.maintenance.stats import RESERVED
from treering.plugins import load_plugin, plugins
from treering.store import Store

if TYPE_CHECKING:
    from collections.abc import Generator
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Any

    from treering.aio import AsyncStore


Durability = Literal["full", "fast"]
"""``full`` survives power loss; ``fast`` survives SIGKILL, but power loss may take the last commits."""

DEFAULT_FOLDER: Final = ".treering"
BLOBS_FOLDER: Final = "blobs"
"""Where a local store keeps its packs by default."""
ENVIRONMENT: Final = "TREERING_URL"
SLOW_MS: Final = "TREERING_SLOW_MS"
"""Log engine calls that take at least this many milliseconds (logger ``treering.slow``)."""
KEY_ENVIRONMENT: Final = "TREERING_API_KEY"


def open(
    url: str | Path | None = None,
    *,
    durability: Durability = "full",
    blobs: str | Blobs | None = None,
    namespace: str | None = None,
    api_key: str | None = None,
) -> Store:
    """Open a store; create it if it does not exist.

    Args:
        url: A folder, ``sqlite:///folder``, ``postgresql://...``, ``memory:``, or ``https://...`` for a
            treering server. Defaults to the environment variable TREERING_URL, then to the nearest
            ``.treering`` in this folder or one above it, then to a new one in this folder.
        durability: ``"full"`` survives power loss. ``"fast"`` survives SIGKILL and is faster, but power loss
            may take the last commits.
        blobs: Where packs of large objects go instead of beside the database. Pass it on every open.
        namespace: The tenant. On a server, a namespace within the key's project.
        api_key: The key for a server. Defaults to the environment variable TREERING_API_KEY.
    """
    location = locate(url)
    if durability not in get_args(Durability):
        raise InvalidInput(f"durability={durability!r} is not valid; use 'full' or 'fast'")
    if api_key is not None and location.scheme not in _REMOTE:
        raise InvalidInput(f"api_key is for https:// stores, not for {location.display}; leave it out")
    space = check_space("default" if namespace is None else namespace)
    if space.startswith(RESERVED):
        raise InvalidInput(f"namespaces starting with {RESERVED!r} are reserved; choose another one")
    if api_key is not None and not api_key.strip():
        raise InvalidInput("api_key is empty; pass a key of the server, or leave it out for TREERING_API_KEY")
    options = _Options(durability=durability, blobs=blobs, clock=SystemClock(), api_key=api_key)
    engine = _with_slow_log(_ENGINES.get(location.scheme, _open_plugin)(location, options))
    return Store(engine, space=space, folder=location.folder, opener=open)


def open_existing(
    url: str | Path | None = None, *, blobs: str | Blobs | None = None, namespace: str | None = None
) -> Store:
    """Open an existing store. Raise `NotFound` instead of creating one."""
    location = locate(url)
    if not probe(location).exists:
        raise NotFound(f"no store found in {location.display}; select one with --store or {ENVIRONMENT}")
    return open(url, blobs=blobs, namespace=namespace)


def migrate(url: str | Path | None = None, *, blobs: str | Blobs | None = None) -> Migrated:
    """Migrate a store to the current schema. Opening does that too; this also reports what changed."""
    location = locate(url)
    if location.scheme == "memory":
        raise Unsupported("a memory: store has no tables to migrate; select another one with --store")
    if location.scheme in _REMOTE:
        raise Unsupported(
            f"{location.display} is a server, which migrates its own store when it starts; upgrade the server"
        )
    before = probe(location).version
    with open_existing(url, blobs=blobs) as store:
        from treering.engines.sql.schema import SCHEMA_VERSION

        return Migrated(url=store.url, before=before or SCHEMA_VERSION, after=SCHEMA_VERSION)


def accept_loss(url: str | Path | None = None) -> bool:
    """Let a local store that lost its newest commits open as it is; return whether there was such a loss.

    Opening a store whose log was damaged raises `Corrupt`, because commits that were acknowledged are gone.
    Restore a backup instead, if that has more.
    """
    location = locate(url)
    if location.folder is None:
        raise Unsupported(
            f"{location.display} is not a folder; only local stores note what was committed last"
        )
    from treering.engines.sql.schema import SQLITE_FILE
    from treering.engines.sqlite import commit_log

    if not (location.folder / SQLITE_FILE).is_file():
        raise NotFound(f"{location.folder} has no database; restore it from a backup")
    return commit_log.accept_loss(location.folder / SQLITE_FILE)


def open_async(
    url: str | Path | None = None,
    *,
    durability: Durability = "full",
    blobs: str | Blobs | None = None,
    namespace: str | None = None,
    api_key: str | None = None,
) -> Opening:
    """Open a store for asyncio: use the result as an async context manager, or await it and `close` the
    store.

    Takes the arguments of `open`.
    """
    return Opening(
        lambda: open(url, durability=durability, blobs=blobs, namespace=namespace, api_key=api_key)
    )


class Opening:
    """The result of `open_async`: a store to be opened, in a thread, when this is awaited or entered."""

    def __init__(self, opener: Callable[[], Store]) -> None:
        self._opener = opener
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()

    async def _open(self) -> AsyncStore:
        import asyncio  # which a sync store does not need

        from treering.aio import AsyncStore
        from treering.bridge import Bridge

        bridge = Bridge()
        opening = bridge.submit(self._opener)
        try:
            return AsyncStore(await bridge.future(opening), bridge)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unclaimed)
            bridge.shut_down()
            raise
        except BaseException:
            bridge.shut_down()
            raise


def _close_unclaimed(opened: Future[Store]) -> None:
    """Close a store that a thread finished opening after its caller was cancelled."""
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


def _with_slow_log(engine: Engine) -> Engine:
    given = os.environ.get(SLOW_MS)
    if not given:
        return engine
    try:
        threshold_ms = float(given)
    except ValueError:
        engine.close()
        raise InvalidInput(
            f"{SLOW_MS}={given!r} is not a number of milliseconds; use a value like 200"
        ) from None
    from treering.engines.slow_log import log_slow_queries

    return log_slow_queries(engine, threshold_ms)


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """The schema version of a store before and after a migration."""

    url: str
    before: str
    after: str


class StoreLocation(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed store URL: its scheme and, for a local store, its folder."""

    scheme: str
    url: str
    folder: Path | None = None

    @property
    def display(self) -> str:
        """The location as messages show it: without secrets."""
        return str(self.folder) if self.folder is not None else redacted(self.url)


def locate(url: str | Path | None) -> StoreLocation:
    """Parse a store URL (``None``: TREERING_URL, or the nearest ``.treering``; see `nearest_store`)."""
    if url is None:
        url = os.environ.get(ENVIRONMENT) or nearest_store() or DEFAULT_FOLDER
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
    if scheme == "sqlite" or not (found["slashes"] or scheme == "memory"):
        raise InvalidInput(f"{redacted(url)[:200]!r} is not a store; {_FORMS}")
    if scheme not in _ENGINES and scheme not in plugins("engines"):
        raise InvalidInput(f"{redacted(url)[:200]!r} is not a store; {_FORMS}")
    return StoreLocation(scheme=scheme, url=url)


def nearest_store() -> Path | None:
    """Return the store that a program in this folder means: ``.treering`` here, or in the nearest folder
    above that has one, as git finds ``.git``.

    A ``.treering`` without a database is not a store (``~/.treering`` also holds settings). One above that
    belongs to another user is passed over: anyone may create ``/tmp/.treering``.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return None  # the folder was deleted; opening says so
    for parent in (here, *here.parents):
        folder = parent / DEFAULT_FOLDER
        try:
            is_ours = parent == here or folder.stat().st_uid == os.getuid()
            if is_ours and folder.is_dir() and _holds_store(folder):
                return folder
        except OSError:
            continue
    return None


def _holds_store(folder: Path) -> bool:
    """Whether a folder has a database, or what is left of one; nothing is opened."""
    from treering.engines.sql.schema import SQLITE_FILE
    from treering.engines.sqlite.engine import traces_of

    return (folder / SQLITE_FILE).is_file() or bool(traces_of(folder))


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a store exists, and the version of its schema if that could be read."""

    exists: bool
    version: str | None = None


def probe(location: StoreLocation) -> Probe:
    """Look for a store without opening, creating or changing it.

    It says that a store does not exist only when that is certain. Every other problem is left to `open`,
    which reports it better.
    """
    if location.folder is not None:
        return _probe_folder(location.folder)
    if location.scheme in _POSTGRES:
        return _probe_postgres(location.url)
    return Probe(exists=True)


def _probe_folder(folder: Path) -> Probe:
    """Read the schema version from the folder of a local store, which this process must not have open."""
    import sqlite3
    from contextlib import closing

    from treering.engines.sql.schema import SQLITE_FILE

    file = folder / SQLITE_FILE
    if not file.is_file():
        from treering.engines.sqlite.engine import traces_of

        return Probe(exists=bool(traces_of(folder)))  # opening says that its database is lost
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=60)) as connection:
            for (version,) in connection.execute(_VERSION):
                return Probe(exists=True, version=str(version))
    except sqlite3.Error:
        pass
    return Probe(exists=True)


def _probe_postgres(url: str) -> Probe:
    try:
        import psycopg
    except ImportError:
        return Probe(exists=True)
    try:
        with psycopg.connect(url) as connection:
            for (version,) in connection.execute(_VERSION):
                return Probe(exists=True, version=str(version))
    except psycopg.errors.UndefinedTable:
        return Probe(exists=False)
    except psycopg.Error:
        pass
    return Probe(exists=True)


_VERSION: Final = "SELECT version_num FROM alembic_version"


MIN_KEY_CHARS: Final = 16
_MIN_DISTINCT: Final = 8


def check_api_key(key: str) -> str:
    """Return a key that a server is to accept; raise `InvalidInput` for an empty or a weak one."""
    if (
        len(key) < MIN_KEY_CHARS
        or len(set(key)) < _MIN_DISTINCT
        or not (key.isascii() and key.isprintable())
        or " " in key
    ):
        raise InvalidInput(
            f"the API key is {'empty' if not key else 'too weak'}; use at least {MIN_KEY_CHARS} printable "
            f"ASCII characters without spaces, {_MIN_DISTINCT} of them different, such as the output of: "
            "openssl rand -hex 32"
        )
    return key


def redacted(url: str) -> str:
    """Return a URL without its password and without query values that look like secrets."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return _ASSIGNED.sub(r"\1***", url)  # perhaps a connection string: host=... password=...
    name, colon, password = rest.partition(":")
    at = ""
    if colon and "@" in password:  # a password may have any character, also those that end a host
        _, at, rest = password.rpartition("@")
    else:
        name = colon = ""
    host, question, query = rest.partition("?")
    hidden = _SECRET.sub(r"\1***", query)
    return "".join((scheme, slashes, name, ":***" if colon else "", at, host, question, hidden))


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `open` that an engine may need."""

    durability: Durability
    blobs: str | Blobs | None
    clock: Clock
    api_key: str | None


def _open_memory(_: StoreLocation, options: _Options) -> Engine:
    from treering.engines.memory.engine import MemoryEngine

    if options.blobs is not None:
        raise InvalidInput("a memory: store keeps objects in memory; leave blobs out, or open a folder")
    return MemoryEngine(clock=options.clock)


def _open_folder(location: StoreLocation, options: _Options) -> Engine:
    from treering.blobs.folder import FolderBlobs
    from treering.engines.sqlite.engine import open_sqlite

    folder = location.folder or Path(DEFAULT_FOLDER)
    blobs = _open_blobs(options.blobs) or FolderBlobs(folder / BLOBS_FOLDER, clock=options.clock)
    engine = open_sqlite(
        folder, durability=options.durability, blobs=blobs, clock=options.clock, phrases=_phrases
    )
    lake = LakeEngine(engine, blobs)
    engine.archived = lake.archived_events
    return cast("Engine", lake)


def _open_postgres(location: StoreLocation, options: _Options) -> Engine:
    try:
        from treering.engines.postgres import open_postgres
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"psycopg", "psycopg_pool"}:
            raise MissingExtra("a postgresql:// store", "postgres") from error
        raise
    from treering.engines.cells import CellEngine

    blobs = _open_blobs(options.blobs)
    lake: LakeEngine | None = None

    def open_one(url: str) -> Any:
        engine = open_postgres(url, blobs=blobs, clock=options.clock, phrases=_phrases)
        if lake is not None:
            engine.archived = lake.archived_events
        return engine

    home = open_one(location.url)
    cells = CellEngine(home, open_one)
    if blobs is None:
        return cast("Engine", cells)
    lake = LakeEngine(cells, blobs)
    home.archived = lake.archived_events
    return cast("Engine", lake)


def _phrases() -> tuple[str, ...]:
    """Return the dictionary of a new store, from the packages that know what its rows have in common."""
    from treering.graphs import extension
    from treering.runs import span

    return (*span.PHRASES, *extension.PHRASES)


def _open_remote(location: StoreLocation, options: _Options) -> Engine:
    from treering.engines.remote.engine import open_remote

    if options.blobs is not None:
        raise InvalidInput(f"{location.display} is a server with its own object storage; leave blobs out")
    return open_remote(location.url, api_key=options.api_key or os.environ.get(KEY_ENVIRONMENT) or None)


def _open_plugin(location: StoreLocation, options: _Options) -> Engine:
    """Open a store with the engine that an installed package adds for its scheme."""
    opener = load_plugin("engines", location.scheme)
    if opener is None:
        raise InvalidInput(f"{location.display} is not a store; {_FORMS}")
    return opener(
        location.url,
        durability=options.durability,
        blobs=_open_blobs(options.blobs),
        clock=options.clock,
    )


_ENGINES: Final[dict[str, Callable[[StoreLocation, _Options], Engine]]] = {
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
    "use a folder (./.treering), sqlite:///folder, sqlite:////absolute/folder, "
    "postgresql://user@host/database, https://server or memory: (write ./a:b for a folder with a colon)"
)
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>//)?")
_ASSIGNED: Final = re.compile(
    r"(\b[^=\s]*(?:pass|secret|token|key)[^=\s]*\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|\S*)", re.IGNORECASE
)
_SECRET: Final = re.compile(r"((?:^|&)[^=&]*(?:pass|secret|token|key|sig)[^=&]*=)[^&]*", re.IGNORECASE)


def _folder(path: Path) -> StoreLocation:
    if "\0" in str(path):
        raise InvalidInput(
            f"{ascii(str(path))[:80]} cannot be a store: a path cannot contain a NUL character"
        )
    try:
        folder = path.expanduser().absolute()
        if folder.exists() and not folder.is_dir():
            raise InvalidInput(f"{folder} is a file, but a store is a folder; choose another path")
    except (OSError, RuntimeError) as error:  # RuntimeError: ~user does not exist
        kind = Unreachable if isinstance(error, PermissionError) else InvalidInput
        reason = getattr(error, "strerror", None) or error
        raise kind(f"{str(path)[:200]} cannot be a store: {reason}; choose another folder") from error
    return StoreLocation(scheme="sqlite", url=f"sqlite:///{folder}", folder=folder)


def _open_blobs(blobs: str | Blobs | None) -> Blobs | None:
    if not isinstance(blobs, str):
        return blobs
    from treering.blobs.location import open_blobs

    return open_blobs(blobs)
