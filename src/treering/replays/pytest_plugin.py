"""The pytest plugin: the fixture `recorded`, which replays a recorded test.

    def test_refund(recorded):
        run = recorded("refund", agent=my_agent)
        assert run.tools == ["search_orders", "refund"]
        assert run.final.startswith("Your refund")

It comes with ``pip install 'treering[pytest]'`` and is found by pytest. **Invariant:** a test session that
does not use it imports nothing else of treering.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from treering.replays.fixtures import RecordedTest
    from treering.replays.recorded import Otherwise, ReplayedRun
    from treering.replays.replay import Divergence, Tolerance

_WRITTEN: Final = "treering recording"
_FIXTURE: Final = "recorded"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("treering", "recorded tests (treering)")
    group.addoption(
        "--treering-record",
        action="store_true",
        help="run the agents of recorded tests for real, and write their recordings again",
    )
    group.addoption("--treering-only", action="store_true", help="run only recorded tests")
    group.addoption(
        "--treering-changed",
        metavar="BASE",
        help="run only recorded tests whose agent or recording differs from a commit",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the options do not select."""
    base = config.getoption("--treering-changed")
    if base is None and not config.getoption("--treering-only"):
        return
    wanted = [each for each in items if _FIXTURE in getattr(each, "fixturenames", ())]
    if base is not None:
        wanted = _affected(config, base, wanted)
    kept = {id(each) for each in wanted}
    config.hook.pytest_deselected(items=[each for each in items if id(each) not in kept])
    items[:] = wanted


def _affected(config: pytest.Config, base: str, items: list[pytest.Item]) -> list[pytest.Item]:
    import sys

    from treering.errors import TreeringError
    from treering.replays.changed import Changes, changed_files

    try:
        changed = changed_files(config.rootpath, base)
    except TreeringError as error:
        raise pytest.UsageError(str(error)) from None
    changes = Changes(config.rootpath, changed, path=[Path(each).absolute() for each in sys.path])
    affected = {file: changes.affect(file) for file in {each.path for each in items}}
    return [each for each in items if affected[each.path] is not None]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which recordings were written."""
    written = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == _WRITTEN and getattr(report, "when", "") == "call"
    ]
    if written:
        terminalreporter.section("recordings")
        for line in written:
            terminalreporter.write_line(line)


@pytest.fixture
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Replay recorded tests; see `Recorded`."""
    made = Recorded(request, tmp_path_factory)
    yield made
    made.close()


class Recorded:
    """Replays recorded tests, for the test that it was made for."""

    def __init__(self, request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> None:
        self._request = request
        self._folders = folders
        self._runs: list[ReplayedRun] = []

    def __call__(
        self,
        name: str,
        *,
        agent: Any = None,
        arguments: Sequence[Any] | Mapping[str, Any] | None = None,
        real_tools: bool | Sequence[str] = (),
        otherwise: Otherwise = "fail",
        tolerance: Tolerance | None = None,
        complete: bool = True,
        allow: Sequence[str] = (),
    ) -> ReplayedRun:
        """Run an agent with its models and tools answering from a recording, and return what it did.

        The recording is ``recordings/NAME.jsonl`` in the folder of the test, or in one above it. The options
        are those of `treering.replays.recorded.run_recorded`.
        """
        from treering.errors import NotFound
        from treering.replays.fixtures import find_test, read_test
        from treering.replays.recorded import run_recorded
        from treering.replays.replay import Diverged

        __tracebackhide__ = True
        config, here = self._request.config, self._request.path.parent
        path = find_test(name, start=here, stop=config.rootpath)
        if config.getoption("--treering-record"):
            return self._record(name, path, agent=agent, arguments=arguments, tolerance=tolerance)
        problem = ""  # pytest would show an exception that this one was raised in as well
        try:
            test = read_test(path)
        except NotFound as error:
            again = f"pytest --treering-record {self._request.node.nodeid}"
            problem = f"{error}\nor, if the agent may run for real: {again}"
        else:
            try:
                run = run_recorded(
                    test,
                    agent=agent,
                    arguments=arguments,
                    folder=self._new_folder(),
                    real_tools=real_tools,
                    otherwise=otherwise,
                    tolerance=tolerance,
                    complete=complete,
                    allow=allow,
                )
            except Diverged as diverged:
                problem = self._explain(test, diverged.divergence)
            else:
                self._runs.append(run)
                return run
        pytest.fail(problem, pytrace=False)

    async def awaited(self, name: str, **options: Any) -> ReplayedRun:
        """Do the same in an ``async`` test: ``run = await recorded.awaited("refund", agent=my_agent)``."""
        return await asyncio.to_thread(partial(self, name, **options))

    def close(self) -> None:
        """Close the stores of the runs."""
        for each in self._runs:
            each.store.close()
        self._runs.clear()

    def _record(
        self,
        name: str,
        path: Path,
        *,
        agent: Any,
        arguments: Sequence[Any] | Mapping[str, Any] | None,
        tolerance: Tolerance | None,
    ) -> ReplayedRun:
        from treering.replays.fixtures import empty_test, read_test, write_test
        from treering.replays.recorded import record_again

        test = read_test(path) if path.is_file() else empty_test(name)
        made, run = record_again(
            test, agent=agent, arguments=arguments, folder=self._new_folder(), tolerance=tolerance
        )
        self._runs.append(run)
        written = write_test(made, path.parent, replace=True)
        rootpath = self._request.config.rootpath
        shown = path.relative_to(rootpath) if path.is_relative_to(rootpath) else path
        line = f"{shown}: {len(made.steps)} steps, {written.size / 1000:.1f} KB"
        if made.secrets:
            line += f", {len(made.secrets)} secrets scrubbed ({', '.join(sorted({*made.secrets}))})"
        self._request.node.user_properties.append((_WRITTEN, line))
        return run

    def _new_folder(self) -> Path:
        return self._folders.mktemp("recorded", numbered=True)

    def _explain(self, test: RecordedTest, found: Divergence) -> str:
        return (
            f"{test.name!r} is not what was recorded ({len(test.steps)} steps, {test.path}).\n"
            f"{found.describe()}\n"
            "If this is what you want, record it again: pytest --treering-record "
            f"{self._request.node.nodeid}\n"
            "If the difference means nothing, declare it: recorded(..., tolerance=Tolerance(ignore=[...]))"
        )
