"""Remotes: short names for the servers of a team, and addresses such as ``team://project/thread``.

Names are kept in ``remotes.json`` in the user's configuration folder, with the URL of each server. Keys are
not: a remote names the environment variable that holds its key. **Invariant:** nothing secret is written.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

import msgspec

from treering.api import KEY_ENVIRONMENT, locate, redacted
from treering.api import open as open_store
from treering.core.ids import check_id, check_space
from treering.errors import Forbidden, InvalidInput, NotFound, Unreachable
from treering.files import make_folder, write_durably

if TYPE_CHECKING:
    from treering.store import Store

_FILE: Final = "treering/remotes.json"
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ADDRESS: Final = re.compile(
    r"(?P<remote>[a-z][a-z0-9-]*)://(?P<project>[^/]+)(?:/(?P<thread>.*))?", re.DOTALL
)
_TAKEN: Final = frozenset({"file", "http", "https", "memory", "postgres", "postgresql", "s3", "sqlite"})
"""Words that begin other addresses."""
_FORM: Final = "an address is REMOTE://PROJECT/THREAD, such as team://support/alice"


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A server by its short name. ``key_env`` names the environment variable that holds the key for it."""

    name: str
    url: str
    key_env: str = KEY_ENVIRONMENT

    def open(self, project: str) -> Store:
        """Open the store of a project; the key must be one of that project."""
        store = open_store(self.url, api_key=os.environ.get(self.key_env) or None)
        granted = getattr(store.engine, "project", project)
        if granted != project:
            store.close()
            raise Forbidden(
                f"the key for remote {self.name!r} (${self.key_env}) is for project {granted!r}, not "
                f"{project!r}; write {self.name}://{granted}/..., or add a remote with the other key "
                "(--key-env)"
            )
        return store


class RemoteAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed address: a remote, the project of its key, and one thread of it, or all."""

    remote: str
    project: str
    thread: str | None = None

    def __str__(self) -> str:
        rest = "" if self.thread is None else "/" + quote(self.thread, safe="/@:+,;=")
        return f"{self.remote}://{self.project}{rest}"


def parse_address(text: str) -> RemoteAddress:
    """Parse ``team://project/thread``, or ``team://project`` for all threads."""
    found = _ADDRESS.fullmatch(text)
    if found is None or found["remote"] in _TAKEN:
        raise InvalidInput(f"{redacted(text)[:80]!r} is not an address of a remote; {_FORM}")
    thread = unquote(found["thread"]) if found["thread"] else None
    return RemoteAddress(
        remote=found["remote"],
        project=check_space(found["project"]),
        thread=None if thread is None else check_id(thread, "thread id"),
    )


def add_remote(name: str, url: str, *, key_env: str | None = None) -> Remote:
    """Give a server a short name, or change where that points to."""
    if _NAME.fullmatch(name) is None or name in _TAKEN:
        raise InvalidInput(f"{name[:40]!r} cannot name a remote; use a-z, 0-9 and -, such as team")
    location = locate(url)
    if location.scheme not in {"http", "https"}:
        raise InvalidInput(f"{location.display} is not a server; a remote is an https:// URL")
    if redacted(url) != url:
        raise InvalidInput("the URL contains a secret; put the key into an environment variable (--key-env)")
    if key_env is not None and _VARIABLE.fullmatch(key_env) is None:
        raise InvalidInput(f"{key_env[:40]!r} is not the name of an environment variable, such as TEAM_KEY")
    remote = Remote(name=name, url=url, key_env=key_env or KEY_ENVIRONMENT)
    _write({**_read(), name: remote})
    return remote


def remove_remote(name: str) -> Remote:
    """Forget a short name; the server is not touched."""
    remotes = _read()
    removed = remotes.pop(name, None)
    if removed is None:
        raise _unknown(name, remotes)
    _write(remotes)
    return removed


def remotes() -> list[Remote]:
    """Return all remotes, by name."""
    return [each for _, each in sorted(_read().items())]


def remote(name: str) -> Remote:
    """Return the remote with this name. Raise `NotFound` if there is none."""
    known = _read()
    if name not in known:
        raise _unknown(name, known)
    return known[name]


def _unknown(name: str, known: dict[str, Remote]) -> NotFound:
    there = f"; there are: {', '.join(sorted(known))}" if known else ""
    return NotFound(f"remote {name!r} not found{there}. Add it with: treering remote add {name} URL")


def _path() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / _FILE


def _read() -> dict[str, Remote]:
    path = _path()
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[Remote])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(
            f"{path} is not valid ({error}); correct or delete it, and add the remotes again"
        ) from None
    return {each.name: each for each in found}


def _write(remotes: dict[str, Remote]) -> None:
    path = _path()
    make_folder(path.parent)
    ordered = [each for _, each in sorted(remotes.items())]
    write_durably(path, msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n")
