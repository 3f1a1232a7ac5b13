"""The memory files of a CianaParrot agent: imported with front matter, and again after an edit."""

from __future__ import annotations

import pytest

import treering
from treering.errors import InvalidInput
from treering.importers.ciana import import_ciana


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as opened:
        yield opened


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "data").mkdir()
    folder = tmp_path / "workspace"
    (folder / "skills" / "weather").mkdir(parents=True)
    (folder / "IDENTITY.md").write_text("# I am Ciana\n")
    (folder / "AGENT.md").write_text("---\ntags: [rules]\n---\nAsk first.\n")
    (folder / "MEMORY.md").write_text("Alice likes tea.\n")
    (folder / "skills" / "weather" / "SKILL.md").write_text(
        "---\nname: forecast\ndescription: How to look up the weather\n---\nOpen the window.\n"
    )
    return folder


def bring(workspace, store, **options):
    report = import_ciana(workspace.parent / "data", store, workspace=workspace, **options)
    return {each.path: (each.new, each.known, each.left_out) for each in report.files}


EVERYTHING = {
    "workspace/IDENTITY.md",
    "workspace/AGENT.md",
    "workspace/MEMORY.md",
    "workspace/skills/weather/SKILL.md",
}


def test_files_become_documents_and_a_second_import_changes_nothing(store, workspace):
    assert bring(workspace, store, dry_run=True) == dict.fromkeys(EVERYTHING, (1, 0, 0))
    assert list(store.memory.namespaces()) == []
    assert bring(workspace, store) == dict.fromkeys(EVERYTHING, (1, 0, 0))
    before = store.stats().rows
    assert bring(workspace, store) == dict.fromkeys(EVERYTHING, (0, 1, 0))
    assert store.stats().rows == before
    assert [each.id for each in store.memory.query(auto_load=True)] == ["AGENT", "IDENTITY", "MEMORY"]
    assert store.memory.get("AGENT").tags == ["rules"]
    skill = store.memory.get("skills/weather")
    assert (skill.metadata["name"], skill.content, skill.auto_load) == (
        "forecast",
        "Open the window.\n",
        False,
    )
    assert "Alice likes tea." in store.memory.context().text


def test_an_edited_file_is_a_new_version_and_a_changed_document_is_left_alone(store, workspace):
    bring(workspace, store)
    (workspace / "MEMORY.md").write_text("Alice likes coffee.\n")
    assert bring(workspace, store)["workspace/MEMORY.md"] == (1, 0, 0)
    assert [version.version for version in store.memory.history("MEMORY")] == [2, 1]
    store.memory.update("IDENTITY", lambda text: text + "I learnt something.\n")
    (workspace / "IDENTITY.md").write_text("# Someone else\n")
    report = import_ciana(workspace.parent / "data", store, workspace=workspace)
    (left,) = [each for each in report.files if each.left_out]
    assert left.path == "workspace/IDENTITY.md"
    assert "changed in the store" in left.note
    assert "I learnt something." in store.memory.get("IDENTITY").content


def test_an_invalid_file_is_left_out_and_named(store, workspace):
    (workspace / "MEMORY.md").write_text("---\ntags: [unclosed\n---\nx\n")
    with pytest.raises(InvalidInput, match=r"MEMORY\.md"):
        bring(workspace, store, strict=True)
    assert list(store.memory.namespaces()) == []
    report = import_ciana(workspace.parent / "data", store, workspace=workspace)
    assert ["MEMORY.md" in each for each in report.bad] == [True]
    assert store.memory.get("MEMORY") is None
    assert store.memory.get("IDENTITY") is not None
