"""The engine suite: the promises of treering's architecture as tests that any engine can join.

An engine joins with a class of a few lines::

    class TestMyEngine(EngineSuite):
        @pytest.fixture
        def make_engine(self, tmp_path):
            return lambda: MyEngine(tmp_path)

`make_engine` gives a function that opens a *new* engine object on the *same* storage each time it is
called within one test, because that is how other processes and a restart look. An engine whose bytes lie
in a folder overrides the fixture `storage` as well, one with ``caps.backup`` the method `open_snapshot`.

Tests are named for the invariant that they pin down (``test_07_...``). What an engine cannot honour it
denies in its ``caps`` and lists in `skips`; the first test below fails when the two differ, so nothing is
skipped silently. Random histories against the reference model are in `treering.testing.machine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

# Ahead of the imports below, so that a failing assert there says what the values were.
pytest.register_assert_rewrite(
    *(
        f"treering.testing.suite_{name}"
        for name in (
            "commits", "copy", "erasure", "gc", "journal", "leases", "lists", "objects", "processes", "refs",
            "search", "spaces", "sums",
        )
    )
)  # fmt: skip

from treering.core.query import SearchQuery, SumQuery  # noqa: E402
from treering.errors import Unsupported  # noqa: E402
from treering.testing import batches  # noqa: E402
from treering.testing.harness import needs_of  # noqa: E402
from treering.testing.suite_commits import CommitTests  # noqa: E402
from treering.testing.suite_copy import CopyTests  # noqa: E402
from treering.testing.suite_erasure import ErasureTests  # noqa: E402
from treering.testing.suite_gc import SweepTests  # noqa: E402
from treering.testing.suite_journal import JournalTests  # noqa: E402
from treering.testing.suite_leases import LeaseTests  # noqa: E402
from treering.testing.suite_lists import ListTests  # noqa: E402
from treering.testing.suite_objects import ObjectTests  # noqa: E402
from treering.testing.suite_processes import ProcessTests  # noqa: E402
from treering.testing.suite_refs import RefTests  # noqa: E402
from treering.testing.suite_search import SearchTests  # noqa: E402
from treering.testing.suite_spaces import SpaceTests  # noqa: E402
from treering.testing.suite_sums import SumTests  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.core.engine import Engine

INVARIANTS = 20


class EngineSuite(
    CommitTests,
    ProcessTests,
    RefTests,
    ObjectTests,
    SweepTests,
    ListTests,
    LeaseTests,
    JournalTests,
    SumTests,
    SearchTests,
    ErasureTests,
    CopyTests,
    SpaceTests,
):
    """All tests that an engine has to pass."""

    def test_00_the_skip_list_is_exactly_what_caps_deny(self, engine: Engine) -> None:
        denied = {
            name
            for name, test in _tests(type(self))
            if any(not getattr(engine.caps, need) for need in needs_of(test))
        }
        assert self.skips == denied, f"skips should be {sorted(denied)}"

    def test_00_every_invariant_has_a_test(self) -> None:
        numbers = {name.split("_")[1] for name, _ in _tests(type(self))}
        assert numbers >= {f"{number:02}" for number in range(1, INVARIANTS + 1)}

    def test_20_an_engine_says_where_it_is(self, engine: Engine) -> None:
        assert engine.url
        assert "password" not in engine.url

    def test_20_what_caps_deny_is_unsupported(self, engine: Engine, space: str) -> None:
        engine.commit(batches.set_ref(space, "r"))
        uses: dict[str, Callable[[], Any]] = {
            "claim": lambda: engine.claim(space, "job", holder="a", seconds=1),
            "search": lambda: engine.search(space, SearchQuery(collection="notes", text="x")),
            "sums": lambda: engine.sums(space, SumQuery(grain="day")),
            "follow": lambda: engine.wait(space, 0, seconds=0),
        }
        for capability, use in uses.items():
            if getattr(engine.caps, capability):
                use()
            else:
                with pytest.raises(Unsupported):
                    use()


def _tests(suite: type) -> list[tuple[str, Any]]:
    return [(name, getattr(suite, name)) for name in dir(suite) if name.startswith("test_")]
