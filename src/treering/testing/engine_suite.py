"""The engine suite: every promise of the engine contract as a test that any engine can join.

To join, subclass it and provide the fixture `make_engine`. It returns a function that opens a *new* engine
object on the *same* storage each time it is called within a test, as another process or a restart would::

    import pytest
    from hypothesis.stateful import run_state_machine_as_test
    from treering.testing.engine_suite import EngineSuite
    from treering.testing.machine import engine_machine


    class TestMyEngine(EngineSuite):
        skips = frozenset({"test_a_snapshot_is_a_consistent_store"})  # my caps have backup=False

        @pytest.fixture
        def make_engine(self, tmp_path):
            return lambda: MyEngine(tmp_path)

        @pytest.fixture
        def storage(self, tmp_path):  # for bytes in a folder: the suite searches it for erased ones
            return tmp_path


    def test_random_histories(tmp_path):
        run_state_machine_as_test(engine_machine(lambda: MyEngine(tmp_path)))

An engine with ``caps.backup`` also overrides `open_snapshot`. Tests of capabilities that ``caps`` denies must
be listed in `skips`; a difference between the two fails, so nothing is skipped silently. There is one module
per area of the contract: commits, refs, objects, lists, journal, derived data, gc, erasure, copy, processes,
spaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

# Before the imports below, so that failing asserts in them show their values.
pytest.register_assert_rewrite(
    *(
        f"treering.testing.suite_{name}"
        for name in (
            "commits", "copy", "derived", "erasure", "gc", "journal", "lists", "objects", "processes", "refs",
            "spaces",
        )
    )
)  # fmt: skip

from treering.core.query import SearchQuery, SumQuery  # noqa: E402
from treering.errors import Unsupported  # noqa: E402
from treering.testing import batches  # noqa: E402
from treering.testing.harness import needs_of  # noqa: E402
from treering.testing.suite_commits import CommitTests  # noqa: E402
from treering.testing.suite_copy import CopyTests  # noqa: E402
from treering.testing.suite_derived import SearchTests, SumTests  # noqa: E402
from treering.testing.suite_erasure import ErasureTests  # noqa: E402
from treering.testing.suite_gc import SweepTests  # noqa: E402
from treering.testing.suite_journal import JournalTests  # noqa: E402
from treering.testing.suite_lists import ListTests  # noqa: E402
from treering.testing.suite_objects import ObjectTests  # noqa: E402
from treering.testing.suite_processes import LeaseTests, ProcessTests  # noqa: E402
from treering.testing.suite_refs import RefTests  # noqa: E402
from treering.testing.suite_spaces import SpaceTests  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.core.engine import Engine


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
    """All tests that an engine must pass."""

    def test_skips_are_exactly_the_tests_that_caps_deny(self, engine: Engine) -> None:
        denied = {
            name
            for name, test in _tests(type(self))
            if any(not getattr(engine.caps, need) for need in needs_of(test))
        }
        assert self.skips == denied, f"skips should be {sorted(denied)}"

    def test_the_url_holds_no_secret(self, engine: Engine) -> None:
        assert engine.url
        assert "password" not in engine.url

    def test_what_caps_deny_is_unsupported(self, engine: Engine, space: str) -> None:
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
