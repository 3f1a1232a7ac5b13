"""The async store: generated, awaited, and never torn by a cancellation."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import inspect
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import treering
from treering.bridge import POOL_SIZE, Bridge
from treering.core.batch import Batch, Receipt
from treering.core.records import Checked
from treering.engines.memory.engine import MemoryEngine
from treering.errors import Closed, Conflict, InvalidInput
from treering.store import Store

ROOT = Path(__file__).resolve().parents[1]
SCOPE = "/thread/t1"


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, timeout=100))


def moved(store: Store | treering.AsyncStore, name: str, value: bytes = b"1") -> Batch:
    draft = store.draft()
    draft.set_ref(name, value, scope=SCOPE)
    return draft.batch()


@pytest.fixture(params=["memory:", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.param if request.param == "memory:" else str(tmp_path / "store")


class TestOpening:
    def test_as_a_context_manager(self, url: str) -> None:
        async def main() -> None:
            async with treering.open_async(url, namespace="team") as store:
                assert isinstance(store, treering.AsyncStore)
                assert store.space == "team"
                assert (await store.commit(moved(store, "n"))).versions == {"n": 1}
            with pytest.raises(Closed):
                await store.stats()

        run(main())

    def test_awaited(self, url: str) -> None:
        async def main() -> None:
            store = await treering.open_async(url)
            assert (await store.stats()).rows["events"] == 0
            assert repr(store).startswith("<AsyncStore ")
            assert repr(store.thread("t")) == "AsyncThread('t')"
            await store.close()
            await store.close()

        run(main())

    def test_errors_come_when_it_is_awaited(self) -> None:
        async def main() -> None:
            opening = treering.open_async("mysql://x")
            with pytest.raises(InvalidInput):
                await opening

        run(main())

    def test_a_cancelled_opening_leaves_no_store_open(self) -> None:
        closed = threading.Event()
        started = threading.Event()
        cancelled = threading.Event()

        class Slow(MemoryEngine):
            def close(self) -> None:
                super().close()
                closed.set()

        def open_slowly() -> Store:
            started.set()
            assert cancelled.wait(60)
            return Store(Slow())

        async def main() -> None:
            from treering.api import Opening

            task = asyncio.ensure_future(Opening(open_slowly).__aenter__())
            await asyncio.to_thread(started.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            cancelled.set()

        run(main())
        assert closed.wait(60)


class TestCalls:
    def test_the_async_api(self, url: str, tmp_path: Path) -> None:
        async def main() -> None:
            async with treering.open_async(url) as store:
                await store.commit(moved(store, "n"))
                seen: list[tuple[Checked, bool]] = []
                here = threading.current_thread()
                report = await store.verify(
                    on_progress=lambda each: seen.append((each, threading.current_thread() is here))
                )
                assert report.ok
                assert all(in_loop for _, in_loop in seen)
                assert (await store.gc(dry_run=True)).dry_run
                await store.reindex()
                await store.backup(tmp_path / "saved")
                async with treering.open_async("memory:") as other:
                    assert (await store.copy_to(other)).last_seq == 1
                    assert (await other.stats()).rows["refs"] == 1
                assert (await store.forget(scope=SCOPE)).refs == 1

        run(main())

    def test_many_commits_at_once(self, url: str) -> None:
        async def main() -> None:
            async with treering.open_async(url) as store:
                receipts = await asyncio.gather(*(store.commit(moved(store, f"n{i}")) for i in range(100)))
                assert len({receipt.last_seq for receipt in receipts}) == 100
                first = store.submit(moved(store, "n0"))
                assert (await first).versions == {"n0": 2}

        run(main())

    def test_errors_come_through(self, url: str) -> None:
        async def main() -> None:
            async with treering.open_async(url) as store:
                draft = store.draft()
                draft.set_ref("n", b"1", scope=SCOPE, expect=7)
                with pytest.raises(Conflict):
                    await store.commit(draft)
                with pytest.raises(InvalidInput):
                    await store.forget()

        run(main())

    def test_context_variables_hop_along(self) -> None:
        variable = contextvars.ContextVar("variable", default="unset")

        async def main() -> None:
            variable.set("set")
            assert await Bridge().call(variable.get) == "set"

        run(main())

    def test_the_loop_is_never_blocked_by_a_call(self) -> None:
        async def main() -> None:
            bridge = Bridge()
            ticked = threading.Event()
            call = asyncio.ensure_future(bridge.call(ticked.wait, 60))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not call.done()
            ticked.set()
            assert await call

        run(main())

    def test_hooks_that_call_the_store_do_not_wait_for_the_threads_that_wait_for_them(self) -> None:
        async def main() -> None:
            async with treering.open_async("memory:") as store:

                async def hook(request: Any) -> dict[str, Any]:
                    return {"metadata": {"first": await store.thread(request.thread_id).head() is None}}

                store.hooks.add("pre_checkpoint_save", hook)
                saves = (store.thread(f"t{number}").append("hello") for number in range(3 * POOL_SIZE))
                saved = await asyncio.gather(*saves)
                assert all(each is not None and each.metadata == {"first": True} for each in saved)

        run(main())


class TestIteration:
    def test_an_iterator_becomes_an_async_one(self) -> None:
        closed: list[int] = []

        def numbers(count: int) -> Iterator[int]:
            try:
                yield from range(count)
            finally:
                closed.append(count)

        async def main() -> None:
            bridge = Bridge()
            assert [each async for each in bridge.iterate(numbers, 3)] == [0, 1, 2]
            endless = bridge.iterate(numbers, 1_000_000)
            async for each in endless:
                if each == 2:
                    break
            await endless.aclose()  # type: ignore[attr-defined]

        run(main())
        assert closed == [3, 1_000_000]


class TestCancellation:
    def test_a_commit_in_flight_is_kept(self) -> None:
        submitted, release = threading.Event(), threading.Event()

        class Slow(MemoryEngine):
            def submit(self, batch: Batch) -> Future[Receipt]:
                submitted.set()
                future: Future[Receipt] = Future()

                def work() -> None:
                    release.wait(60)
                    future.set_result(self.commit(batch))  # raises if the future was cancelled

                threading.Thread(target=work).start()
                return future

        async def main() -> None:
            store = treering.AsyncStore(Store(Slow()))
            batch = moved(store, "n")
            task = asyncio.ensure_future(store.commit(batch))
            await asyncio.to_thread(submitted.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            release.set()
            again = await store.commit(batch)
            assert again.versions == {"n": 1}
            assert store.engine.refs("default", ["n"])["n"].version == 1

        run(main())

    def test_a_call_in_flight_runs_to_its_end(self) -> None:
        steps: list[str] = []
        started = threading.Event()
        cancelled = threading.Event()
        finished = threading.Event()

        def work() -> None:
            started.set()
            assert cancelled.wait(60)
            steps.append("finished")
            finished.set()

        async def main() -> None:
            bridge = Bridge()
            task = asyncio.ensure_future(bridge.call(work))
            await asyncio.to_thread(started.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert steps == []
            cancelled.set()
            await bridge.finish(lambda: steps.append("closed"))

        run(main())
        assert finished.wait(60)
        assert sorted(steps) == ["closed", "finished"]

    def test_cancelled_commits_on_disk_are_whole_or_absent(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with treering.open_async(tmp_path / "store") as store:
                for number in range(50):
                    draft = store.draft()
                    draft.set_ref(f"a{number}", b"1", scope=SCOPE)
                    draft.set_ref(f"b{number}", b"1", scope=SCOPE)
                    task = asyncio.ensure_future(store.commit(draft))
                    for _ in range(number % 7):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

        run(main())
        with treering.open(tmp_path / "store") as store:
            names = {ref.name for ref in store.engine.scan_refs("default", "")}
            halves = [{name[1:] for name in names if name[0] == half} for half in "ab"]
            assert halves[0] == halves[1]
            assert store.verify().ok


DIRECT = {"agent", "chat", "draft", "in_namespace", "run", "submit", "thread", "tool", "transcript"}
"""What does no I/O, or gives back a future, and is therefore not awaited."""


class TestGenerated:
    def test_it_is_current(self) -> None:
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "generate.py"), "--check"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert "aio.py" not in done.stderr

    def test_every_public_word_has_its_twin_with_the_same_signature(self) -> None:
        words = [name for name in vars(Store) if not name.startswith("_")]
        for name in words:
            ours = inspect.getattr_static(Store, name)
            theirs = inspect.getattr_static(treering.AsyncStore, name)
            if isinstance(ours, property):
                assert isinstance(theirs, property), name
                continue
            parameters = [list(inspect.signature(each).parameters) for each in (ours, theirs)]
            assert parameters[0] == parameters[1], name
            awaited = inspect.iscoroutinefunction(theirs) or inspect.isasyncgenfunction(theirs)
            assert awaited or name in DIRECT, name

    def test_the_generator_is_ready_for_views(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(ROOT / "scripts"))
        import generate_aio

        (tmp_path / "src" / "treering").mkdir(parents=True)
        (tmp_path / "src" / "treering" / "example.py").write_text(
            """
from collections.abc import Callable, Iterator
from treering.core.records import Record

class Thread:
    def history(self, *, last: int = 10) -> Iterator[Record]: ...
    def fork(self, name: str) -> "Thread": ...

class Desk:
    @property
    def first(self) -> Thread: ...
    def thread(self, name: str) -> Thread: ...
    def threads(self) -> Iterator[Thread]: ...
    def merge(self, thread: Thread, *, on_step: Callable[[int], None] | None = None) -> None: ...
"""
        )
        monkeypatch.setattr(generate_aio, "ROOT", tmp_path)
        text = generate_aio.render(
            (
                generate_aio.Twin(module="treering.example", name="Thread", twin="AsyncThread"),
                generate_aio.Twin(
                    module="treering.example", name="Desk", twin="AsyncDesk", direct=frozenset({"thread"})
                ),
            )
        )
        ast.parse(text)
        assert "async def history(self, *, last: int = 10) -> AsyncIterator[Record]:" in text
        assert "def thread(self, name: str) -> AsyncThread:" in text
        assert "return AsyncThread(self._desk.thread(name), self._bridge)" in text
        assert "yield AsyncThread(each, self._bridge)" in text
        assert "thread: Thread | AsyncThread" in text
        assert "on_step=self._bridge.in_loop(on_step)" in text
