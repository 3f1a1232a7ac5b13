"""Failpoints: named places in the code where a test can inject a failure.

Code calls ``hit("commit.before_fsync")`` at the moments that matter for durability. Nothing happens until a
test arms that name, with `arm` or through the environment of a child process::

    TREERING_FAILPOINTS="commit.after_insert=kill:3,pack.write=raise:ENOSPC"

Every name is declared with a description, so that fault tests can enumerate them, and so that arming or
hitting a misspelt name fails. **Invariant:** while nothing is armed, a hit costs one test of an empty dict.

An action is a word and its arguments, separated by colons. A final number means "only on the n-th hit from
now"; without it, the action applies to every hit.

- ``kill``: the process kills itself with SIGKILL.
- ``exit``: it exits without any cleanup, with code 86.
- ``raise``: raise `Injected`; ``raise:ENOSPC`` raises an `OSError` with that errno instead.
- ``sleep:20``: the thread sleeps for 20 milliseconds (``sleep:20:3``: on the third hit).
- ``count``: nothing happens, but `hits` counts.

Instead of an action, `arm` takes a function, which is called at every hit and may raise anything.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from treering.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

ENVIRONMENT: Final = "TREERING_FAILPOINTS"
EXIT_CODE: Final = 86


class Injected(RuntimeError):
    """Raised by a failpoint that was armed with ``raise``."""


class _Armed:
    """The action of one armed failpoint, and its number of hits."""

    def __init__(self, name: str, action: str | Callable[[], None]) -> None:
        self.name = name
        self.hits = 0
        self.lock = Lock()
        self.errno = 0
        self.milliseconds = 0
        self.only: int | None = None
        self.function = action if not isinstance(action, str) else None
        if not isinstance(action, str):
            self.word = "call"
            return
        word, *rest = action.split(":")
        self.word = word
        if word == "raise" and rest and not rest[0].isdecimal():
            self.errno = getattr(errno, rest.pop(0), 0) or _refuse(name, action)
        elif word == "sleep":
            self.milliseconds = int(rest.pop(0)) if rest and rest[0].isdecimal() else _refuse(name, action)
        self.only = int(rest.pop(0)) if rest and rest[0].isdecimal() else None
        if word not in _ACTIONS or rest:
            _refuse(name, action)

    def strike(self) -> None:
        """Count the hit and act if it is due."""
        with self.lock:
            self.hits += 1
            due = self.only is None or self.hits == self.only
        if not due or self.word == "count":
            return
        if self.function is not None:
            self.function()
        elif self.word == "kill":
            import signal  # slow to import, and every store imports this module

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
    """Declare a failpoint and return its name. Engines may share a name if its description is the same."""
    if _declared.setdefault(name, meaning) != meaning:
        raise InvalidInput(f"failpoint {name} is already declared, as {_declared[name]!r}")
    return name


def declared() -> dict[str, str]:
    """All failpoints declared by the modules imported so far, with their descriptions."""
    return dict(_declared)


def hit(name: str) -> None:
    """Pass a failpoint, and run its action if it is armed."""
    if _armed:
        _pass(name)


def is_armed(name: str) -> bool:
    """Whether a failpoint is armed."""
    return name in _armed


def arm(name: str, action: str | Callable[[], None]) -> None:
    """Arm a declared failpoint with an action or a function, replacing the current one."""
    if name not in _declared:
        _undeclared(name)
    _armed[name] = _Armed(name, action)


def disarm(name: str | None = None) -> None:
    """Disarm one failpoint, or all of them."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)


def hits(name: str) -> int:
    """The number of hits of an armed failpoint."""
    armed = _armed.get(name)
    return armed.hits if armed is not None else 0


def arm_from(specification: str) -> None:
    """Arm the failpoints listed in a specification (the format of the environment variable).

    Names are not checked: a child process arms before it imports the modules that declare them.
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
    known = ", ".join(sorted(_declared)) or "none (import the engine first)"
    raise InvalidInput(f"failpoint {name!r} not found; declared failpoints: {known}")


def _refuse(name: str, action: str) -> int:
    raise InvalidInput(
        f"invalid action {action!r} for failpoint {name}; use kill, exit, raise, raise:<ERRNO>, sleep:<ms> "
        "or count, optionally followed by :<n> for the n-th hit"
    )


arm_from(os.environ.get(ENVIRONMENT, ""))


@contextmanager
def armed(name: str, action: str) -> Generator[None]:
    """Arm a failpoint inside the block."""
    arm(name, action)
    try:
        yield
    finally:
        disarm(name)
