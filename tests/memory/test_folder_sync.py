"""Synchronising a folder that a person edits with memory that agents write."""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import treering
from treering.errors import Conflict, InvalidInput

HAND_WRITTEN = """\
---
# do not touch my comments
tags: [style,   alice]  # mine
auto_load: true
---
Prefers concise replies.
"""


@pytest.fixture
def memory():
    with treering.open("memory:") as store:
        yield store.memory


def fingerprint(folder):
    """Return every file with its bytes, inode and modification time."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_both_sides_end_up_equal(memory, tmp_path):
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice" / "tone.md").write_text(HAND_WRITTEN)
    memory.save("bob/tone", "Long letters.", tags=["style"], metadata={"weight": 2})
    done = memory.sync_folder(tmp_path)
    assert (done.imported, done.exported, done.ok) == (("alice/tone",), ("bob/tone",), True)
    taken = memory.get("alice/tone")
    assert (taken.content, taken.tags, taken.auto_load) == (
        "Prefers concise replies.\n",
        ["style", "alice"],
        True,
    )
    assert (tmp_path / "bob" / "tone.md").read_text() == "---\ntags:\n- style\nweight: 2\n---\nLong letters."


def test_a_sync_without_changes_touches_nothing(memory, tmp_path):
    (tmp_path / "a.md").write_text(HAND_WRITTEN)
    memory.save("b", "from the store")
    memory.sync_folder(tmp_path)
    before = fingerprint(tmp_path)
    done = memory.sync_folder(tmp_path)
    assert (done.unchanged, done.imported, done.exported) == (2, (), ())
    assert fingerprint(tmp_path) == before
    assert memory.get("a").version == memory.get("b").version == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_exporting_keeps_comments_key_order_and_file_mode(memory, tmp_path):
    file = tmp_path / "a.md"
    file.write_text(HAND_WRITTEN)
    file.chmod(0o600)
    memory.sync_folder(tmp_path)
    memory.update("a", lambda text: text + "And tea.\n")
    assert memory.sync_folder(tmp_path).exported == ("a",)
    assert file.read_text() == HAND_WRITTEN + "And tea.\n"
    now = memory.get("a")
    memory.save("a", now.content, tags=["new"], auto_load=True)
    memory.sync_folder(tmp_path)
    assert file.read_text().splitlines()[1:6] == [
        "# do not touch my comments",
        "tags:",
        "- new",
        "auto_load: true",
        "---",
    ]
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_edited_file_becomes_a_new_version(memory, tmp_path):
    file = tmp_path / "a.md"
    file.write_text("first")
    memory.sync_folder(tmp_path)
    file.write_text("second")
    assert memory.sync_folder(tmp_path).imported == ("a",)
    assert [each.document.content for each in memory.history("a")] == ["second", "first"]


def test_a_change_on_both_sides_is_a_conflict_and_left_alone(memory, tmp_path):
    file = tmp_path / "a.md"
    file.write_text("first")
    memory.sync_folder(tmp_path)
    file.write_text("by a person")
    memory.save("a", "by an agent")
    for _ in range(2):
        (conflict,) = memory.sync_folder(tmp_path).conflicts
        assert (conflict.id, conflict.path) == ("a", "a.md")
        assert file.read_text() == "by a person"
        assert memory.get("a").content == "by an agent"
    file.write_text("by an agent")
    assert memory.sync_folder(tmp_path).ok


def test_different_documents_without_a_common_sync_are_a_conflict(memory, tmp_path):
    (tmp_path / "a.md").write_text("one")
    (tmp_path / "b.md").write_text("same")
    memory.save("a", "two")
    memory.save("b", "same")
    done = memory.sync_folder(tmp_path)
    assert ([each.id for each in done.conflicts], done.unchanged) == (["a"], 1)


def test_deletions_are_applied_unless_the_other_side_changed(memory, tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.md").write_text(name)
    memory.sync_folder(tmp_path)
    (tmp_path / "a.md").unlink()
    memory.delete("b")
    (tmp_path / "c.md").unlink()
    memory.save("c", "changed")
    memory.delete("d")
    (tmp_path / "d.md").write_text("changed")
    done = memory.sync_folder(tmp_path)
    assert (done.deleted, done.removed) == (("a",), ("b",))
    assert [each.id for each in done.conflicts] == ["c", "d"]
    assert memory.get("a") is None
    assert not (tmp_path / "b.md").exists()
    assert memory.get("c").content == "changed"
    assert (tmp_path / "d.md").read_text() == "changed"
    assert memory.restore("a", 1).content == "a"


def test_an_invalid_file_is_reported_and_deletes_nothing(memory, tmp_path):
    for name in ("yaml", "bytes", "fine"):
        (tmp_path / f"{name}.md").write_text(name)
    memory.sync_folder(tmp_path)
    (tmp_path / "yaml.md").write_text("---\ntags: [a\n---\n")
    (tmp_path / "bytes.md").write_bytes(b"\xff\xfe")
    (tmp_path / "tag.md").write_text('---\ntags: ["a\\nb"]\n---\n')
    (tmp_path / "huge.md").write_bytes(b"x" * (17 * 1024 * 1024))
    done = memory.sync_folder(tmp_path)
    assert [each.path for each in done.problems] == ["bytes.md", "huge.md", "tag.md", "yaml.md"]
    assert not done.deleted
    assert {each.id for each in memory.query()} == {"yaml", "bytes", "fine"}
    (tmp_path / "yaml.md").write_text("repaired")
    (tmp_path / "bytes.md").write_text("bytes")
    (tmp_path / "tag.md").unlink()
    (tmp_path / "huge.md").unlink()
    done = memory.sync_folder(tmp_path)
    assert (done.ok, done.imported) == (True, ("yaml",))


def test_two_files_with_one_id_are_reported(memory, tmp_path):
    (tmp_path / "a.md").write_text("one")
    (tmp_path / "b.md").write_text("---\nid: a\n---\ntwo")
    done = memory.sync_folder(tmp_path)
    assert "a.md has the same id 'a'" in done.problems[0].message
    assert memory.get("a").content == "one"


def test_a_dry_run_changes_nothing(memory, tmp_path):
    (tmp_path / "a.md").write_text("one")
    memory.save("b", "two")
    done = memory.sync_folder(tmp_path, dry_run=True)
    assert (done.imported, done.exported, done.dry_run) == (("a",), ("b",), True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.md"]
    assert memory.get("a") is None


def test_symbolic_links_never_lead_out_of_the_folder(memory, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link.md").symlink_to(outside / "secret.md")
    (folder / "sub").symlink_to(outside)
    assert memory.sync_folder(folder).imported == ()
    memory.save("sub/secret", "overwritten?")
    memory.save("sub/new", "planted?")
    memory.save("zoo", "written anyway")
    done = memory.sync_folder(folder)
    assert [each.id for each in done.conflicts] == ["sub/new", "sub/secret"]
    assert done.exported == ("zoo",)
    assert [path.name for path in outside.iterdir()] == ["secret.md"]
    assert (outside / "secret.md").read_text() == "secret"


def test_a_folder_belongs_to_one_namespace(memory, tmp_path):
    (tmp_path / "a.md").write_text("one")
    memory.in_namespace("alice").sync_folder(tmp_path)
    with pytest.raises(InvalidInput, match="belongs to namespace 'alice'"):
        memory.in_namespace("bob").sync_folder(tmp_path)
    (tmp_path / ".treering-memory.json").write_text("{")
    with pytest.raises(InvalidInput, match="corrupt"):
        memory.in_namespace("alice").sync_folder(tmp_path)
    with pytest.raises(InvalidInput, match="not a folder"):
        memory.sync_folder(tmp_path / "a.md")


def test_an_edit_during_a_sync_is_not_overwritten(memory, tmp_path, monkeypatch):
    from treering.memory import folder_sync

    (tmp_path / "a.md").write_text("first")
    memory.sync_folder(tmp_path)
    memory.save("a", "by an agent")
    original = folder_sync.render_document

    def edit_meanwhile(document, file, **options):
        (tmp_path / "a.md").write_text("by a person, just now")
        return original(document, file, **options)

    monkeypatch.setattr(folder_sync, "render_document", edit_meanwhile)
    (conflict,) = memory.sync_folder(tmp_path).conflicts
    assert "edited in the meantime" in conflict.reason
    assert (tmp_path / "a.md").read_text() == "by a person, just now"


def test_concurrent_syncs_are_serialised(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.md").write_text(str(number))
    with treering.open(tmp_path / "store") as store:
        failures = []

        def sync():
            try:
                failures.extend(store.memory.sync_folder(folder).conflicts)
            except Conflict as error:
                failures.append(error)

        threads = [threading.Thread(target=sync) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert [each.version for each in store.memory.query()] == [1] * 10
    assert not (folder / ".drafts").exists()


IDS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=12).filter(
    lambda text: not text.isspace()
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(documents=st.dictionaries(IDS, st.text(st.characters(codec="utf-8"), max_size=30), max_size=4))
def test_documents_with_any_id_and_text_round_trip(documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("notes")
    with treering.open("memory:") as one, treering.open("memory:") as other:
        for name, text in documents.items():
            one.memory.save(name, text, tags=["t"])
        assert one.memory.sync_folder(folder).ok
        (folder / ".treering-memory.json").unlink(missing_ok=True)
        assert other.memory.sync_folder(folder).ok
        assert {each.id: each.content for each in other.memory.query(tags=["t"])} == documents
    assert all(str(path.resolve()).startswith(str(folder.resolve())) for path in folder.rglob("*"))
