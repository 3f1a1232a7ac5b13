"""What the tests of pydantic-ai's conversations share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationStore,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo

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


def said(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def answered(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


def words(messages: list[ModelMessage]) -> list[str]:
    return [str(message.parts[0].content) for message in messages]


async def saved(
    conversations: ConversationStore, id: str, *texts: str, scope: str | None = None
) -> Conversation:
    messages: list[ModelMessage] = [
        answered(text) if place % 2 else said(text) for place, text in enumerate(texts)
    ]
    conversation = Conversation(conversation_id=id, messages=messages)
    await conversations.save(conversation, scope=scope)
    return conversation


def counting(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    prompts = sum(part.part_kind == "user-prompt" for each in messages for part in each.parts)
    return answered(f"answer {prompts}")


def items(store: Store) -> int:
    return store.stats().rows["items"]
