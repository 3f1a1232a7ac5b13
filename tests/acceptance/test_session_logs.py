"""CianaParrot: session logs of a chat, one JSON line per message."""

from __future__ import annotations

import asyncio
import json

import pytest

import treering


def test_e3_the_log_of_a_session(tmp_path):
    with treering.open(tmp_path / "store") as store:
        chat = store.chat("telegram", "123456")
        log = chat.log(tmp_path / "data" / "sessions")
        assert log.append("user", "What's the weather?", user_id="123456")
        assert log.append("assistant", "Based on the current forecast...")
        assert log.path == tmp_path / "data" / "sessions" / "telegram_123456.jsonl"
        question, answer = map(json.loads, log.path.read_text().splitlines())
        assert list(question) == ["role", "content", "ts", "channel", "user_id"]
        assert question["ts"].endswith("+00:00")
        assert (question["channel"], question["user_id"], answer["user_id"]) == ("telegram", "123456", None)
        chat.reset()
        later = chat.log(tmp_path / "data" / "sessions")
        later.append("user", "new session")
        assert later.path.name == "telegram_123456_s1.jsonl"
        assert [line.content for line in log.read(last=1)] == ["Based on the current forecast..."]
        assert [line.content for line in later.read()] == ["new session"]


def test_e3_a_failure_to_log_never_blocks_a_message(tmp_path):
    (tmp_path / "sessions").write_text("a file where a folder should be")
    with treering.open(tmp_path / "store") as store:
        log = store.chat("telegram", 1).log(tmp_path / "sessions")
        with pytest.warns(RuntimeWarning, match="not logged"):
            assert not log.append("user", "hello")
        (tmp_path / "sessions").unlink()
        assert log.append("user", "again")
        assert len(log.path.read_text().splitlines()) == 2  # the journal had kept the first one


def test_e3_awaited(tmp_path):
    async def main():
        async with treering.open_async(tmp_path / "store") as store:
            log = await store.chat("telegram", 1).log(tmp_path / "sessions")
            assert await log.append("user", "hello")
            assert [line.role for line in await log.read()] == ["user"]

    asyncio.run(main())
