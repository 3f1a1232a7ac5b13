"""Google ADK's sessions: what holds for the SDK's own services holds for ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from tests.adapters.adk.talk import ENGINES, open_store, said, texts
from treering.adapters.adk import TreeringSessionService

ALICE: dict[str, Any] = {"app_name": "shop", "user_id": "alice"}


@pytest.fixture(params=["ADK's in memory", "ADK's on SQLite", *ENGINES, "remote"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseSessionService]:
    if request.param == "ADK's in memory":
        yield InMemorySessionService()
    elif request.param == "ADK's on SQLite":
        yield SqliteSessionService(str(tmp_path / "adk.db"))
    else:
        for store in open_store(request, tmp_path):
            yield TreeringSessionService(store)
            assert store.verify().ok


class TestContract:
    def test_a_new_session_has_the_state_that_it_was_given(self, sessions: BaseSessionService) -> None:
        async def run() -> None:
            given = {"step": 1, "user:name": "Alice", "app:open": True, "temp:x": 9}
            made = await sessions.create_session(**ALICE, session_id="s", state=given)
            expected = {"step": 1, "user:name": "Alice", "app:open": True}
            assert made.state == expected
            assert made.events == []
            assert made.last_update_time > 0
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert found == made
            assert await sessions.get_session(**ALICE, session_id="another") is None

        asyncio.run(run())

    def test_an_id_is_made_or_stripped_and_never_taken_twice(self, sessions: BaseSessionService) -> None:
        async def run() -> None:
            one, two = [await sessions.create_session(**ALICE) for _ in range(2)]
            assert one.id
            assert one.id != two.id
            padded = await sessions.create_session(**ALICE, session_id="  s ")
            assert padded.id == "s"
            with pytest.raises(AlreadyExistsError):
                await sessions.create_session(**ALICE, session_id="s", state={"app:leaked": 1})
            found = await sessions.get_session(**ALICE, session_id=" s")
            assert found is not None
            assert found.state == {}

        asyncio.run(run())

    def test_events_come_back_as_they_were(self, sessions: BaseSessionService) -> None:
        async def run() -> None:
            session = await sessions.create_session(**ALICE, session_id="s")
            blob = types.Part.from_bytes(data=bytes(range(256)), mime_type="application/octet-stream")
            call = types.Part.from_function_call(name="add", args={"a": 1, "b": 10**25})
            events = [
                said("hello", at=1000.5),
                said("", at=1001.0, author="agent", parts=[call, blob]),
                said("bye", at=1002.25, actions=EventActions(transfer_to_agent="other", escalate=True)),
            ]
            events[1].long_running_tool_ids = {"call-1"}
            for event in events:
                assert await sessions.append_event(session, event) is event
            assert session.events == events
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert found.events == events
            assert found.last_update_time == session.last_update_time == 1002.25

        asyncio.run(run())

    def test_state_changes_go_where_their_prefix_says(self, sessions: BaseSessionService) -> None:
        async def run() -> None:
            session = await sessions.create_session(**ALICE, session_id="s", state={"kept": [1]})
            other = await sessions.create_session(**ALICE, session_id="t")
            bobs = await sessions.create_session(app_name="shop", user_id="bob", session_id="s")
            delta = {"own": 1, "user:u": {"deep": [1, None]}, "app:a": 2.5, "temp:t": "gone"}
            event = said("x", actions=EventActions(state_delta=dict(delta)))
            await sessions.append_event(session, event)
            assert session.state["temp:t"] == "gone"
            assert "temp:t" not in event.actions.state_delta

            async def state_of(each: Session) -> dict[str, Any]:
                found = await sessions.get_session(
                    app_name=each.app_name, user_id=each.user_id, session_id=each.id
                )
                assert found is not None
                return found.state

            shared = {"user:u": {"deep": [1, None]}, "app:a": 2.5}
            assert await state_of(session) == {"kept": [1], "own": 1, **shared}
            assert await state_of(other) == shared
            assert await state_of(bobs) == {"app:a": 2.5}
            assert await sessions.get_user_state(**ALICE) == {"u": {"deep": [1, None]}}
            assert await sessions.get_user_state(app_name="shop", user_id="bob") == {}
            await sessions.append_event(
                session, said("y", actions=EventActions(state_delta={"own": None, "user:u": {"new": 1}}))
            )
            assert await state_of(session) == {"kept": [1], "own": None, "user:u": {"new": 1}, "app:a": 2.5}

        asyncio.run(run())

    def test_a_partial_event_is_not_stored(self, sessions: BaseSessionService) -> None:
        async def run() -> None:
            session = await sessions.create_session(**ALICE, session_id="s")
            event = said("hel")
            event.partial = True
            await sessions.append_event(session, event)
            assert session.events == []
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert found.events == []

        asyncio.run(run())

    @pytest.mark.parametrize(
        "config, expected",
        [
            (None, "abcdef"),
            (GetSessionConfig(), "abcdef"),
            (GetSessionConfig(num_recent_events=2), "ef"),
            (GetSessionConfig(num_recent_events=0), ""),
            (GetSessionConfig(num_recent_events=99), "abcdef"),
            (GetSessionConfig(after_timestamp=1004), "ef"),
            (GetSessionConfig(after_timestamp=1003.5), "ef"),
            (GetSessionConfig(after_timestamp=900), "abcdef"),
            (GetSessionConfig(after_timestamp=1002, num_recent_events=3), "def"),
            (GetSessionConfig(after_timestamp=1004, num_recent_events=5), "ef"),
        ],
    )
    def test_recent_events_only(
        self, sessions: BaseSessionService, config: GetSessionConfig | None, expected: str
    ) -> None:
        async def run() -> None:
            session = await sessions.create_session(**ALICE, session_id="s", state={"n": 1})
            for place, text in enumerate("abcdef"):
                await sessions.append_event(session, said(text, at=1000.0 + place))
            found = await sessions.get_session(**ALICE, session_id="s", config=config)
            assert found is not None
            assert texts(found) == list(expected)
            assert found.state == {"n": 1}

        asyncio.run(run())

    def test_sessions_are_listed_the_last_changed_one_last(self, sessions: BaseSessionService) -> None:
        async def run() -> None:
            made: dict[str, Session] = {}
            for user, name in (("alice", "a"), ("alice", "b"), ("bob", "c")):
                made[name] = await sessions.create_session(
                    app_name="shop", user_id=user, session_id=name, state={"id": name, "user:who": user}
                )
            await sessions.create_session(app_name="other", user_id="alice", session_id="a")
            await sessions.create_session(app_name="shop/alice", user_id="x", session_id="a")
            for place, name in enumerate("cab"):
                await sessions.append_event(made[name], said("x", at=4e9 + place))

            async def listed(**which: Any) -> list[tuple[str, str]]:
                answer = await sessions.list_sessions(**which)
                assert all(each.events == [] for each in answer.sessions)
                assert all(
                    each.state == {"id": each.id, "user:who": each.user_id} for each in answer.sessions
                )
                return [(each.user_id, each.id) for each in answer.sessions]

            assert await listed(app_name="shop") == [("bob", "c"), ("alice", "a"), ("alice", "b")]
            assert await listed(app_name="shop", user_id="alice") == [("alice", "a"), ("alice", "b")]
            assert await listed(app_name="shop", user_id="nobody") == []
            assert await listed(app_name="nothing") == []

        asyncio.run(run())

    def test_a_deleted_session_goes_and_shared_state_stays(self, sessions: BaseSessionService) -> None:
        async def run() -> None:
            session = await sessions.create_session(**ALICE, session_id="s", state={"own": 1, "user:u": 2})
            await sessions.append_event(session, said("x"))
            await sessions.delete_session(**ALICE, session_id="s")
            await sessions.delete_session(**ALICE, session_id="s")
            assert await sessions.get_session(**ALICE, session_id="s") is None
            assert (await sessions.list_sessions(app_name="shop")).sessions == []
            with pytest.raises(SessionNotFoundError):
                await sessions.append_event(session, said("y"))
            again = await sessions.create_session(**ALICE, session_id="s")
            assert again.state == {"user:u": 2}
            assert again.events == []

        asyncio.run(run())

    @pytest.mark.parametrize("name", ["a/b", "..", "ä" * 500, "a%2Fb", "~", "line\nbreak", "🌲"])
    def test_names_are_any_strings(self, sessions: BaseSessionService, name: str) -> None:
        async def run() -> None:
            for app, user, session_id in ((name, "u", "s"), ("p", name, "s"), ("p", "u", name)):
                names = {"app_name": app, "user_id": user, "session_id": session_id}
                session = await sessions.create_session(**names, state={"user:here": 1})
                await sessions.append_event(session, said("hi"))
                found = await sessions.get_session(**names)
                assert found is not None
                assert (found.app_name, found.user_id, found.id) == (app, user, session_id)
                (listed,) = (await sessions.list_sessions(app_name=app, user_id=user)).sessions
                assert listed.id == session_id
                await sessions.delete_session(**names)

        asyncio.run(run())

    def test_many_sessions_change_shared_state_at_once(self, sessions: BaseSessionService) -> None:
        async def run() -> None:
            made = [await sessions.create_session(**ALICE, session_id=f"s{n}") for n in range(8)]
            await asyncio.gather(
                *(
                    sessions.append_event(each, said("x", actions=EventActions(state_delta={f"user:{n}": n})))
                    for n, each in enumerate(made)
                )
            )
            assert await sessions.get_user_state(**ALICE) == {str(n): n for n in range(8)}

        asyncio.run(run())

    def test_a_value_without_json_is_kept_readable(self, sessions: BaseSessionService) -> None:
        kept = print if isinstance(sessions, InMemorySessionService) else "<built-in function print>"

        async def run() -> None:
            await sessions.create_session(**ALICE, session_id="s", state={"f": print, "n": 1})
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert found.state == {"f": kept, "n": 1}

        asyncio.run(run())

    def test_a_session_made_by_hand_is_taken_if_up_to_date(self, sessions: BaseSessionService) -> None:
        async def run() -> None:
            made = await sessions.create_session(**ALICE, session_id="s")
            hand = Session(id="s", **ALICE, last_update_time=made.last_update_time)
            await sessions.append_event(hand, said("one"))
            await sessions.append_event(hand, said("two"))
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert texts(found) == ["one", "two"]
            with pytest.raises(SessionNotFoundError):
                await sessions.append_event(Session(id="nowhere", **ALICE), said("x"))

        asyncio.run(run())


@pytest.mark.parametrize("sessions", ["ADK's on SQLite", *ENGINES], indirect=True)
class TestStoredSessions:
    def test_a_stale_session_is_an_error(self, sessions: BaseSessionService) -> None:
        async def run() -> None:
            await sessions.create_session(**ALICE, session_id="s")
            mine = await sessions.get_session(**ALICE, session_id="s")
            theirs = await sessions.get_session(**ALICE, session_id="s")
            assert mine is not None
            assert theirs is not None
            await sessions.append_event(mine, said("mine"))
            with pytest.raises(StaleSessionError):
                await sessions.append_event(
                    theirs, said("theirs", actions=EventActions(state_delta={"app:x": 1}))
                )
            assert theirs.events == []
            found = await sessions.get_session(**ALICE, session_id="s")
            assert found is not None
            assert texts(found) == ["mine"]
            assert found.state == {}
            await sessions.append_event(found, said("theirs again"))

        asyncio.run(run())
