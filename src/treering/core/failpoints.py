"""Named places where a test may make a write fail.

Code calls ``hit("commit.before_fsync")`` at the moments that matter for durability. Nothing happens there
until a test arms the name, by `arm` or by the environment of a child process::

    TREERING_FAILPOINTS="commit.after_insert=kill:3,pack.write=raise:ENOSPC"

Every name is declared with what it means, so that the fault tests can enumerate all of them, and arming or
hitting a misspelt one fails. **Invariant:** while nothing is armed, a hit is one test of an empty dict.

An action is a word and its arguments, joined by colons. A last number means "only on the n-th hit from
now"; without it, every hit counts.

- ``kill``: the process ends itself by SIGKILL.
- ``exit``: it ends without any cleanup, with code 86.
- ``raise``: `Injected` is raised; ``raise:ENOSPC`` raises an `OSError` with that number instead.
- ``sleep:20``: the thread waits 20 milliseconds (``sleep:20:3``: on the third hit).
- ``count``: nothing happens, but `hits` counts.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from threading import Lock
from typing import Final

from treering.errors import InvalidInput

ENVIRONMENT: Final = "TREERING_FAILPOINTS"
EXIT_CODE: Final = 86


class Injected(RuntimeError):
    """A failpoint was told to raise here."""


class _Armed:
    """What to do at one name, and how often it was hit since it was armed."""

    def __init__(self, name: str, action: str) -> None:
        word, *rest = action.split(":")
        self.name = name
        self.word = word
        self.hits = 0
        self.lock = Lock()
        self.errno = 0
        self.milliseconds = 0
        if word == "raise" and rest and not rest[0].isdecimal():
            self.errno = getattr(errno, rest.pop(0), 0) or _refuse(name, action)
        elif word == "sleep":
            self.milliseconds = int(rest.pop(0)) if rest and rest[0].isdecimal() else _refuse(name, action)
        self.only = int(rest.pop(0)) if rest and rest[0].isdecimal() else None
        if word not in _ACTIONS or rest:
            _refuse(name, action)

    def strike(self) -> None:
        """Count the hit and act when it is due."""
        with self.lock:
            self.hits += 1
            due = self.only is None or self.hits == self.only
        if not due or self.word == "count":
            return
        if self.word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.word == "exit":
            os._exit(EXIT_CODE)
        elif self.word == "sleep":
            time.sleep(self.milliseconds / 1000)
        elif self.errno:
            raise OSError(self.errno, f"{os.strerror(self.errno)} (failpoint {self.name})")
        else:
            raise Injected(f"failpoint {self.name}")


def declare(name: str, meaning: str) -> str:
    """Make a name known and give it back. Several engines may share a name that means the same."""
    if _declared.setdefault(name, meaning) != meaning:
        raise InvalidInput(f"failpoint {name} is declared already, with another meaning: {_declared[name]!r}")
    return name


def declared() -> dict[str, str]:
    """All names that the modules imported so far have declared, with their meanings."""
    return dict(_declared)


def hit(name: str) -> None:
    """Pass a failpoint."""
    if _armed:
        _pass(name)


def is_armed(name: str) -> bool:
    """Whether something happens at a name."""
    return name in _armed


def arm(name: str, action: str) -> None:
    """Let something happen at a declared name from now on, instead of what was armed there before."""
    if name not in _declared:
        _undeclared(name)
    _armed[name] = _Armed(name, action)


def disarm(name: str | None = None) -> None:
    """Let nothing happen any more, at one name or at all."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)


def hits(name: str) -> int:
    """How often an armed name was hit since it was armed."""
    armed = _armed.get(name)
    return armed.hits if armed is not None else 0


def arm_from(specification: str) -> None:
    """Arm what a text like that of the environment says.

    The names are not looked up: a child process arms before it has imported the modules that declare them.
    """
    for entry in filter(None, (part.strip() for part in specification.split(","))):
        name, equals, action = entry.partition("=")
        if not equals:
            raise InvalidInput(
                f"{ENVIRONMENT} holds {entry!r}; expected name=action, see treering.core.failpoints"
            )
        _armed[name.strip()] = _Armed(name.strip(), action.strip())


_ACTIONS: Final = frozenset({"kill", "exit", "raise", "sleep", "count"})
_declared: Final[dict[str, str]] = {}
_armed: Final[dict[str, _Armed]] = {}


def _pass(name: str) -> None:
    if name not in _declared:
        _undeclared(name)
    armed = _armed.get(name)
    if armed is not None:
        armed.strike()


def _undeclared(name: str) -> None:
    known = ", ".join(sorted(_declared)) or "none yet; import the engine first"
    raise InvalidInput(f"no failpoint is called {name!r}; declared are: {known}")


def _refuse(name: str, action: str) -> int:
    raise InvalidInput(
        f"failpoint {name} cannot do {action!r}; expected kill, exit, raise, raise:<ERRNO>, sleep:<ms> "
        "or count, each with an optional :<n> for the n-th hit"
    )


arm_from(os.environ.get(ENVIRONMENT, ""))
