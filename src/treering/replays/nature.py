"""The clock, randomness and ids of an agent's own code: recorded with a run, and given again by a replay.

An agent that puts the date into its prompt asks another question on another day, and one that makes up an id
asks another one each time. So while a run is recorded, what the agent's code gets from ``time.time``,
``time.time_ns``, ``datetime.now``, ``date.today``, ``uuid.uuid1``, ``uuid.uuid4`` and the functions of
``random`` is kept with its next call (`Exchange.draws`), and a replay gives the same values again.

Only the agent's own code is concerned: functions look who calls them, and let the standard library and
installed packages (clients, frameworks, treering) pass. A value is known by its source and by the function
that asked for it, so what one function asks for more or less often does not shift what others get. Random
numbers come from the same generator as without a recording: a seed that the agent sets has its usual effect.
``secrets`` and ``os.urandom`` are left alone, because what they return must not be stored.
"""

from __future__ import annotations

import datetime as datetime_module  # noqa: ICN001 - `datetime` is the class here
import functools
import random
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Lock
from types import FrameType, ModuleType
from typing import Any, Final, cast

_EPOCH: Final = datetime_module.datetime(1970, 1, 1, tzinfo=datetime_module.UTC)
_datetime: Final = datetime_module.datetime
_date: Final = datetime_module.date
_NUMBERS: Final = (
    "random", "uniform", "triangular", "randint", "randrange", "getrandbits", "gauss", "normalvariate",
    "lognormvariate", "expovariate", "betavariate", "gammavariate", "paretovariate", "vonmisesvariate",
    "weibullvariate",
)  # fmt: skip
_LIBRARIES: Final = tuple(
    f"{Path(path)}/"
    for path in {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[1]),
    }
)


class Nature:
    """Gives the values of a recording as long as there are some, and keeps what it gave.

    Args:
        recorded: the values of a recording, by source and function.
    """

    def __init__(self, recorded: Mapping[str, Iterable[Any]] | None = None) -> None:
        self._left = {key: list(values)[::-1] for key, values in (recorded or {}).items()}
        self._given: dict[str, list[Any]] = {}
        self._lock = Lock()

    def draw(self, source: str, frame: FrameType, real: Callable[[], Any]) -> Any:
        """Return the next value of a source for the function of a frame."""
        code = frame.f_code
        key = f"{source} {Path(code.co_filename).name}:{code.co_qualname}"
        with self._lock:
            left = self._left.get(key)
            value = left.pop() if left else real()
            self._given.setdefault(key, []).append(value)
        return value

    def take(self) -> dict[str, list[Any]]:
        """Return what was given since the last time."""
        if not self._given:
            return {}
        with self._lock:
            given, self._given = self._given, {}
        return given


class _Current:
    """The nature of this process; ``None`` while nothing is recorded or replayed."""

    __slots__ = ("nature",)

    def __init__(self) -> None:
        self.nature: Nature | None = None


current: Final = _Current()


def merge_draws(draws: Iterable[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """Return the values of several calls as those of one."""
    merged: dict[str, list[Any]] = {}
    for each in draws:
        for key, values in each.items():
            merged.setdefault(key, []).extend(values)
    return merged


def begin(nature: Nature, undo: list[Callable[[], None]]) -> None:
    """Use a nature from now on; ``undo`` gets what ends that."""
    before, current.nature = current.nature, nature
    undo.append(functools.partial(setattr, current, "nature", before))
    if before is None:
        _install(undo)


def _is_own(frame: FrameType) -> bool:
    return is_own_file(frame.f_code.co_filename)


@functools.lru_cache(maxsize=4096)
def is_own_file(name: str) -> bool:
    """Whether a source file belongs to the agent, and to no library."""
    return not name.startswith((*_LIBRARIES, "<"))


def _caller(depth: int = 1) -> FrameType:
    """Return the frame that called the function which calls this one."""
    return sys._getframe(depth + 1)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the fast way


def _drawn(source: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose values are drawn; they are plain numbers."""

    @functools.wraps(real)
    def draw(*arguments: Any, **options: Any) -> Any:
        nature, frame = current.nature, _caller()
        if nature is None or not _is_own(frame):
            return real(*arguments, **options)
        return nature.draw(source, frame, lambda: real(*arguments, **options))

    return draw


def _drawn_uuid(source: str, real: Callable[..., uuid.UUID]) -> Callable[..., uuid.UUID]:
    @functools.wraps(real)
    def draw(*arguments: Any, **options: Any) -> uuid.UUID:
        nature, frame = current.nature, _caller()
        if nature is None or not _is_own(frame):
            return real(*arguments, **options)
        return uuid.UUID(nature.draw(source, frame, lambda: str(real(*arguments, **options))))

    return draw


def _chosen(source: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``choice``, ``choices`` or ``sample``, of which positions are drawn: items may be anything."""

    @functools.wraps(real)
    def draw(population: Any, *arguments: Any, **options: Any) -> Any:
        nature, frame = current.nature, _caller()
        if nature is None or not _is_own(frame) or options.get("counts") is not None:
            return real(population, *arguments, **options)
        found = nature.draw(source, frame, lambda: real(range(len(population)), *arguments, **options))
        if isinstance(found, list):
            return [population[each] for each in cast("list[int]", found)]
        return population[found]

    return draw


def _shuffled(real: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(real)
    def shuffle(items: Any) -> None:
        nature, frame = current.nature, _caller()
        if nature is None or not _is_own(frame):
            real(items)
            return

        def order() -> list[int]:
            positions = list(range(len(items)))
            real(positions)
            return positions

        items[:] = [items[each] for each in nature.draw("random.shuffle", frame, order)]

    return shuffle


def _now_us(source: str, depth: int = 2) -> int:
    """Return the time that a `datetime` is made of, in microseconds."""
    nature, frame = current.nature, _caller(depth)
    if nature is None or not _is_own(frame):
        return time.time_ns() // 1000
    return nature.draw(source, frame, lambda: time.time_ns() // 1000)


def _moment(now_us: int) -> datetime_module.datetime:
    return _EPOCH + datetime_module.timedelta(microseconds=now_us)


class _Like(type):
    """Lets a stand-in for a class say that instances of the class are its own."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__mro__[1])


class _Datetime(_datetime, metaclass=_Like):
    """`datetime.datetime` with a clock that can be recorded. Its instances are ordinary ones."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        return _datetime(*arguments, **options)

    @classmethod
    def now(cls, tz: datetime_module.tzinfo | None = None) -> Any:
        moment = _moment(_now_us("datetime.now"))
        return moment.astimezone().replace(tzinfo=None) if tz is None else moment.astimezone(tz)

    @classmethod
    def today(cls) -> Any:
        return _moment(_now_us("datetime.now")).astimezone().replace(tzinfo=None)

    @classmethod
    def utcnow(cls) -> Any:
        return _moment(_now_us("datetime.now")).replace(tzinfo=None)


class _Date(_date, metaclass=_Like):
    """`datetime.date`, likewise."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        return _date(*arguments, **options)

    @classmethod
    def today(cls) -> Any:
        return _moment(_now_us("date.today")).astimezone().date()


def _stand_ins() -> list[tuple[ModuleType, str, Any]]:
    """What is replaced in the modules that have it, and by what."""
    made: list[tuple[ModuleType, str, Any]] = [
        (time, "time", _drawn("time.time", time.time)),
        (time, "time_ns", _drawn("time.time_ns", time.time_ns)),
        (uuid, "uuid1", _drawn_uuid("uuid.uuid1", uuid.uuid1)),
        (uuid, "uuid4", _drawn_uuid("uuid.uuid4", uuid.uuid4)),
        (random, "shuffle", _shuffled(random.shuffle)),
    ]
    made += [(random, name, _drawn(f"random.{name}", getattr(random, name))) for name in _NUMBERS]
    made += [
        (random, name, _chosen(f"random.{name}", getattr(random, name)))
        for name in ("choice", "choices", "sample")
    ]
    return made


def _install(undo: list[Callable[[], None]]) -> None:
    """Replace the functions in their modules, and under the names that the agent's modules gave them."""

    def replace(owner: Any, name: str, value: Any) -> None:
        undo.append(functools.partial(setattr, owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    clock = ModuleType("datetime")
    vars(clock).update(vars(datetime_module))
    vars(clock).update(datetime=_Datetime, date=_Date)
    known: dict[int, Any] = {id(_datetime): _Datetime, id(_date): _Date, id(datetime_module): clock}
    for module, name, stand_in in _stand_ins():
        known[id(getattr(module, name))] = stand_in
        replace(module, name, stand_in)
    for module in list(sys.modules.values()):
        file = cast("Any", getattr(module, "__file__", None))
        if isinstance(file, str) and is_own_file(file):
            for name, value in list(vars(module).items()):
                if id(value) in known:
                    replace(module, name, known[id(value)])
