"""What ADK's sessions get from being threads of a store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types

from tests.adapters.adk.talk import ENGINES, open_store, said, texts
from treering.adapters.adk import TreeringArtifactService, TreeringSessionService, thread_id_of
from treering.errors import Forbidden, Vetoed
from treering.store import Store

ALICE: dict[str, Any] = {"app_name": "shop", "user_id": "alice"}


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from open_store(request, tmp_path)


class TestOnAStore:
    def test_a_deletion_that_was_cut_short_is_finished_by_the_next(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a crash between its two steps, or by a key that lost its rights there."""
        names: dict[str, Any] = {**ALICE, "session_id": "s"}
        erase = store.engine.erase

        def refuse(space: str, plan: Any) -> Any:
            if plan.scopes:
                raise Forbidden("this key may not erase")
            return erase(space, plan)

        async def go() -> None:
            sessions = TreeringSessionService(store)
            await sessions.create_session(**ALICE, session_id="other")
            before = store.engine.stats(store.space).events
            await sessions.append_event(await sessions.create_session(**names), said("secret"))
            with monkeypatch.context() as patch:
                patch.setattr(store.engine, "erase", refuse)
                with pytest.raises(Forbidden):
                    await sessions.delete_session(**names)
            assert await sessions.get_session(**names) is None
            await sessions.delete_session(**names)
            assert store.engine.stats(store.space).events == before

        asyncio.run(go())

    def test_a_session_made_while_its_namesake_is_erased_stays(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names: dict[str, Any] = {**ALICE, "session_id": "s"}
        erase = store.engine.erase

        async def go() -> list[str]:
            sessions = TreeringSessionService(store)
            old = await sessions.create_session(**names)
            await sessions.append_event(old, said("old"))

            def make_anew(space: str, plan: Any) -> Any:
                if not plan.scopes:  # it only asks whether it may
                    return erase(space, plan)
                monkeypatch.setattr(store.engine, "erase", erase)
                made = threading.Thread(target=lambda: asyncio.run(again()))
                made.start()
                made.join()
                return erase(space, plan)

            async def again() -> None:
                other = TreeringSessionService(store)
                await other.append_event(await other.create_session(**names), said("new"))

            monkeypatch.setattr(store.engine, "erase", make_anew)
            await sessions.delete_session(**names)
            found = await TreeringSessionService(store).get_session(**names)
            assert found is not None
            return texts(found)

        assert asyncio.run(go()) == ["new"]
        assert store.verify().ok

    def test_it_is_a_thread_with_readable_messages(self, store: Store) -> None:
        async def go() -> Session:
            sessions = TreeringSessionService(store)
            session = await sessions.create_session(
                **ALICE, session_id="s", state={"cart": ["tea"], "user:x": 1}
            )
            await sessions.append_event(session, said("Where is it?"))
            return session

        session = asyncio.run(go())
        assert thread_id_of(session) == "shop/alice/s"
        assert [info.id for info in store.threads(prefix="shop/alice/")] == ["shop/alice/s"]
        checkpoint = store.thread("shop/alice/s").load()
        assert checkpoint is not None
        assert checkpoint.messages[0]["author"] == "user"
        assert checkpoint.messages[0]["content"] == {"parts": [{"text": "Where is it?"}], "role": "user"}
        assert checkpoint.state == {"cart": ["tea"]}
        assert checkpoint.metadata["session_id"] == "s"

    def test_another_process_finds_it(self, tmp_path: Path) -> None:
        async def write() -> Session:
            async with TreeringSessionService(tmp_path) as sessions:
                session = await sessions.create_session(**ALICE, session_id="s", state={"app:open": True})
                await sessions.append_event(session, said("hello"))
                return session

        async def read() -> Session | None:
            async with TreeringSessionService(tmp_path) as sessions:
                return await sessions.get_session(**ALICE, session_id="s")

        assert asyncio.run(write()) == asyncio.run(read())

    def test_namespaces_do_not_see_each_other(self, store: Store) -> None:
        async def go() -> None:
            one, two = (TreeringSessionService(store, namespace=each) for each in ("one", "two"))
            session = await one.create_session(**ALICE, session_id="s", state={"app:a": 1, "user:u": 1})
            assert await two.get_session(**ALICE, session_id="s") is None
            assert (await two.list_sessions(app_name="shop")).sessions == []
            assert await two.get_user_state(**ALICE) == {}
            other = await two.create_session(**ALICE, session_id="s")
            assert other.state == {}
            await two.delete_session(**ALICE, session_id="s")
            assert await one.get_session(**ALICE, session_id="s") == session

        asyncio.run(go())

    def test_hooks_change_and_look_on(self, store: Store) -> None:
        heard: list[str] = []

        async def redact(saving: Any) -> dict[str, Any]:
            for message in saving.messages:
                message["content"]["parts"][0]["text"] = "****"
            return {"messages": saving.messages, "state": {**(saving.state or {}), "checked": True}}

        store.hooks.add("pre_checkpoint_save", redact)
        store.hooks.add("post_checkpoint_save", lambda result: heard.append(f"saved {result.thread_id}"))
        store.hooks.add("post_checkpoint_load", lambda result: heard.append(f"loaded {result.thread_id}"))

        async def go() -> None:
            sessions = TreeringSessionService(store)
            session = await sessions.create_session(**ALICE, session_id="s", state={"n": 1})
            await sessions.append_event(session, said("4711", actions=EventActions(state_delta={"n": 2})))
            await sessions.append_event(session, said("4712", actions=EventActions(state_delta={"m": 3})))
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert texts(found) == ["****", "****"]
            assert found.state == {"n": 2, "m": 3, "checked": True}

        asyncio.run(go())
        assert heard == ["saved shop/alice/s"] * 3 + ["loaded shop/alice/s"]

    def test_a_vetoed_event_stays_in_the_session_object(self, store: Store) -> None:
        def veto(saving: Any) -> bool | None:
            return False if any("secret" in str(each) for each in saving.messages) else None

        store.hooks.add("pre_checkpoint_save", veto)

        async def go() -> None:
            sessions = TreeringSessionService(store)
            session = await sessions.create_session(**ALICE, session_id="s")
            for text in ("one", "secret", "three"):
                await sessions.append_event(session, said(text))
            assert texts(session) == ["one", "secret", "three"]
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert texts(found) == ["one", "three"]
            store.hooks.add("pre_checkpoint_save", lambda _: False)
            with pytest.raises(Vetoed):
                await sessions.create_session(**ALICE, session_id="t")

        asyncio.run(go())

    def test_an_event_that_is_sent_again_is_stored_once(self, store: Store) -> None:
        async def go() -> None:
            sessions = TreeringSessionService(store)
            await sessions.create_session(**ALICE, session_id="s")
            session = await sessions.get_session(**ALICE, session_id="s")
            twin = await sessions.get_session(**ALICE, session_id="s")
            assert session is not None
            assert twin is not None
            event = said("once", actions=EventActions(state_delta={"user:n": 1}))
            await sessions.append_event(session, event)
            await sessions.append_event(session, event)
            await sessions.append_event(twin, event.model_copy(deep=True))  # its answer was lost
            assert texts(session) == texts(twin) == ["once"]
            await sessions.append_event(twin, said("next"))
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert texts(found) == ["once", "next"]
            with pytest.raises(StaleSessionError):
                await sessions.append_event(session, event)

        asyncio.run(go())

    def test_half_a_character_does_not_lock_a_session(self, store: Store) -> None:
        """A tool that reads a file's name, or a text that was cut, gives half of one."""

        async def run() -> None:
            sessions = TreeringSessionService(store)
            session = await sessions.create_session(**ALICE, session_id="s")
            for text in ("cut \ud83d", "joined \ud83d\ude00"):
                event = said(text, actions=EventActions(state_delta={"path": "caf\udce9"}))
                await sessions.append_event(session, event)
            await sessions.append_event(session, event)  # sent again
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert texts(found) == ["cut \ufffd", "joined \U0001f600"]
            stored = store.thread(thread_id_of(session)).load()
            assert stored is not None
            assert stored.messages[0]["content"]["parts"][0]["text"] == "cut \ud83d"

        asyncio.run(run())

    def test_tasks_that_share_a_session_keep_their_order(self, store: Store) -> None:
        async def go() -> None:
            sessions = TreeringSessionService(store)
            session = await sessions.create_session(**ALICE, session_id="s")
            await asyncio.gather(*(sessions.append_event(session, said(str(n))) for n in range(20)))
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert texts(found) == texts(session) == [str(n) for n in range(20)]

        asyncio.run(go())

    def test_each_event_is_stored_once(self, store: Store) -> None:
        async def go() -> None:
            sessions = TreeringSessionService(store)
            session = await sessions.create_session(**ALICE, session_id="s", state={"big": "x" * 100_000})
            before = store.stats().rows["items"]
            for n in range(30):
                await sessions.append_event(session, said(str(n), actions=EventActions(state_delta={"n": n})))
            assert store.stats().rows["items"] - before == 30
            assert store.stats().rows["objects"] == 1  # the big value, which did not change

        asyncio.run(go())

    def test_a_long_session_is_read_from_its_end(self, store: Store) -> None:
        async def go() -> None:
            sessions = TreeringSessionService(store)
            session = await sessions.create_session(**ALICE, session_id="s")
            for n in range(230):
                await sessions.append_event(session, said(str(n), at=1000.0 + n))
            config = GetSessionConfig(after_timestamp=1010.0)
            found = await sessions.get_session(**ALICE, session_id="s", config=config)
            assert found is not None
            assert texts(found) == [str(n) for n in range(10, 230)]

        asyncio.run(go())

    def test_a_rewound_thread_is_the_session_at_that_point(self, store: Store) -> None:
        async def go() -> None:
            sessions = TreeringSessionService(store)
            session = await sessions.create_session(**ALICE, session_id="s")
            for n in range(4):
                await sessions.append_event(session, said(str(n), actions=EventActions(state_delta={"n": n})))
            store.thread("shop/alice/s").rewind(2)
            with pytest.raises(StaleSessionError):
                await sessions.append_event(session, said("x"))
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert texts(found) == ["0", "1"]
            assert found.state == {"n": 1}
            await sessions.append_event(found, said("else"))
            again = await sessions.get_session(**ALICE, session_id="s")
            assert again is not None
            assert texts(again) == ["0", "1", "else"]

        asyncio.run(go())
        assert store.verify().ok

    def test_gc_keeps_sessions_and_what_they_share(self, store: Store) -> None:
        async def go() -> None:
            sessions, artifacts = TreeringSessionService(store), TreeringArtifactService(store)
            big = "x" * 10_000
            session = await sessions.create_session(
                **ALICE, session_id="s", state={"own": big + "1", "user:u": big + "2", "app:a": big + "3"}
            )
            await sessions.append_event(session, said(big))
            part = types.Part(text=big + "4")
            await artifacts.save_artifact(**ALICE, session_id="s", filename="f", artifact=part)
            store.gc(grace_seconds=0)
            assert await sessions.get_session(**ALICE, session_id="s") == session
            assert await artifacts.load_artifact(**ALICE, session_id="s", filename="f") == part
            await artifacts.delete_artifact(**ALICE, session_id="s", filename="f")
            await sessions.delete_session(**ALICE, session_id="s")
            store.gc(grace_seconds=0)
            assert store.stats().rows["objects"] == 2  # the states of user and app

        asyncio.run(go())
        assert store.verify().ok

    def test_a_session_can_be_forgotten(self, store: Store) -> None:
        async def go() -> None:
            sessions = TreeringSessionService(store)
            session = await sessions.create_session(**ALICE, session_id="s")
            await sessions.append_event(session, said("secret"))
            store.forget(thread=thread_id_of(session))
            assert await sessions.get_session(**ALICE, session_id="s") is None

        asyncio.run(go())
