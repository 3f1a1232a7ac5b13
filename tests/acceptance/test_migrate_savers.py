"""Migrating checkpoints: the example of agent-sdk, and what a real migration needs.

Resuming after SIGKILL and every pair of savers are tested in tests/compat/savers/test_migrate.py.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.compat.savers.savers_under_test import say, talk
from treering.compat.savers import FileSaver, MemorySaver, PostgresSaver, migrate_checkpoints


def test_the_documents_example(tmp_path):
    old_store = MemorySaver()
    new_store = FileSaver(directory=tmp_path / "checkpoints")
    talk(old_store, "conversation-1", steps=4)
    talk(old_store, "conversation-2", steps=2)
    migrated_at = datetime(2026, 11, 16, tzinfo=UTC)

    report = migrate_checkpoints(
        source=old_store,
        destination=new_store,
        transform=lambda checkpoint: checkpoint.replace(
            metadata={**checkpoint.metadata, "migrated_at": migrated_at}
        ),
    )

    assert (report.threads, report.checkpoints, report.changed) == (2, 6, 6)
    assert (report.skipped, report.failed) == (0, {})
    for thread_id in ("conversation-1", "conversation-2"):
        before, after = list(old_store.list(thread_id)), list(new_store.list(thread_id))
        assert [each.id for each in after] == [each.id for each in before]
        assert [each.parent_id for each in after] == [each.parent_id for each in before]
        assert [each.messages for each in after] == [each.messages for each in before]
        assert [(each.created_at, each.updated_at) for each in after] == [
            (each.created_at, each.updated_at) for each in before
        ]
        assert {each.metadata["migrated_at"] for each in after} == {migrated_at}


def test_it_catches_up_with_what_came_later_and_tells_how_far_it_is(tmp_path):
    source, destination, result = MemorySaver(), FileSaver(tmp_path), []
    messages = talk(source)
    migrate_checkpoints(source=source, destination=destination)
    source.save(thread_id="conversation-1", messages=[*messages, say("later")])
    report = migrate_checkpoints(source=source, destination=destination, on_progress=result.append)
    assert (report.checkpoints, report.present) == (1, 5)
    assert [(each.thread_id, each.checkpoints) for each in result] == [("conversation-1", 1)]
    assert destination.load("conversation-1").messages == [*messages, say("later")]


@pytest.mark.postgres
def test_from_files_to_a_server_and_back(tmp_path, postgres_url):
    files, back = FileSaver(tmp_path / "files"), FileSaver(tmp_path / "back")
    talk(files, steps=12)
    with PostgresSaver(postgres_url) as server:
        assert migrate_checkpoints(source=files, destination=server).checkpoints == 12
        assert migrate_checkpoints(source=server, destination=back).checkpoints == 12
    assert [each.to_dict() for each in back.list("conversation-1")] == [
        each.to_dict() for each in files.list("conversation-1")
    ]
