"""What the tests of the adapter for Google ADK share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.genai import types

import treering
from tests.server.running import remote
from treering.store import Store

ENGINES = ["memory", "sqlite", "postgres"]


def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "remote":
        with remote() as store:
            yield store
        return
    if request.param == "postgres":
        request.applymarker("postgres")
        where = request.getfixturevalue("postgres_url")
    else:
        where = "memory:" if request.param == "memory" else tmp_path / "store"
    with treering.open(where) as store:
        yield store


def said(
    text: str,
    *,
    author: str = "user",
    at: float | None = None,
    parts: list[types.Part] | None = None,
    **more: Any,
) -> Event:
    role = "user" if author == "user" else "model"
    event = Event(
        id=uuid.uuid4().hex,
        invocation_id="i",
        author=author,
        content=types.Content(role=role, parts=parts or [types.Part(text=text)]),
        **more,
    )
    if at is not None:
        event.timestamp = at
    return event


def texts(session: Session) -> list[str | None]:
    return [each.content.parts[0].text for each in session.events if each.content and each.content.parts]
