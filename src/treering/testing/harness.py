"""Fixtures of the engine suite: an engine to test, opened and closed for each test.

The test class of an engine provides `make_engine`. A test that needs a capability is marked with `needs`, and
the suite checks that an engine skips exactly the tests that its ``caps`` denies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import pytest

from treering.core import failpoints
from treering.core.ids import new_id

if TYPE_CHECKING:
    from pathlib import Path

    from treering.core.engine import Engine

    OpenEngine = Callable[[], Engine]

Capability = Literal["durable", "shared_writers", "claim", "search", "sums", "follow", "backup"]

T = TypeVar("T")
Test = TypeVar("Test", bound=Callable[..., Any])

_NEEDS = "treering_needs"


def needs(*capabilities: Capability) -> Callable[[Test], Test]:
    """Mark a test as requiring these capabilities."""

    def mark(test: Test) -> Test:
        setattr(test, _NEEDS, frozenset(capabilities))
        return test

    return mark


def needs_of(test: Any) -> frozenset[str]:
    """Return the capabilities that a test requires."""
    return getattr(test, _NEEDS, frozenset())


class EngineHarness:
    """Fixtures of the suite. Override `make_engine`, and `storage` if the bytes are in a folder."""

    skips: ClassVar[frozenset[str]] = frozenset()
    """The tests that the engine cannot pass: exactly those that its ``caps`` denies."""

    @pytest.fixture
    def make_engine(self) -> OpenEngine:
        """Return a function that opens a new engine object, on the same storage within one test."""
        raise NotImplementedError("override the fixture make_engine in your test class")

    @pytest.fixture
    def storage(self) -> Path | None:
        """The folder with the bytes of the engine, if it has one: erased bytes are searched there."""
        return None

    def open_snapshot(self, folder: Path) -> Engine:
        """Open what `snapshot_to` wrote. Required only with ``caps.backup``."""
        raise NotImplementedError(f"override open_snapshot to open {folder}")

    @pytest.fixture
    def open_engine(self, make_engine: OpenEngine) -> Iterator[OpenEngine]:
        """Wrap `make_engine` so that engines are closed after the test."""
        opened: list[Engine] = []

        def open_one() -> Engine:
            opened.append(make_engine())
            return opened[-1]

        yield open_one
        for engine in reversed(opened):
            engine.close()

    @pytest.fixture
    def engine(self, open_engine: OpenEngine) -> Engine:
        """The engine under test."""
        return open_engine()

    @pytest.fixture
    def space(self) -> str:
        """A unique space for the test."""
        return f"space-{new_id()}"

    @pytest.fixture(autouse=True)
    def _skip_what_caps_deny(self, request: pytest.FixtureRequest) -> None:
        test = request.function
        if test.__name__ in self.skips:
            pytest.skip(f"caps deny {', '.join(sorted(needs_of(test)))}")

    @pytest.fixture(autouse=True)
    def _disarm_failpoints(self) -> Iterator[None]:
        yield
        failpoints.disarm()


def at_once(*actions: Callable[[], T]) -> list[T | Exception]:
    """Run actions in threads that start together; return their results or exceptions in order."""
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], T]) -> T | Exception:
        start.wait()
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - the caller looks at it
            return error

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))
