"""Export and import of whole histories: nothing is lost, nothing is written twice, nothing half."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treering
from tests.importers.jsonl_histories import bring, exported, portrait
from treering.core.batch import Event
from treering.core.encoding import encode
from treering.errors import Conflict, InvalidInput, NotFound
from treering.importers.jsonl_import import import_jsonl


def test_a_history_comes_back_as_it_was(source, target):
    data = exported(source)
    assert bring(data, target) == {"threads": (4, 4, 0), "checkpoints": (11, 11, 0), "rewinds": (1, 1, 0)}
    assert portrait(target) == portrait(source)
    assert exported(target) == data
    assert target.verify().ok
    theirs, ours = source.stats().rows, target.stats().rows
    assert (ours["items"], ours["lists"]) == (theirs["items"], theirs["lists"])


def test_again_brings_nothing(source, target):
    data = exported(source)
    bring(data, target)
    before = target.stats().rows
    assert bring(data, target) == {"threads": (4, 0, 4), "checkpoints": (11, 0, 11), "rewinds": (1, 0, 1)}
    assert target.stats().rows == before


def test_a_dry_run_counts_and_writes_nothing(source, target):
    data = exported(source)
    first = bring(data, target, dry_run=True)
    assert target.stats().rows["events"] == 0
    assert first == bring(data, target)
    assert bring(data, target, dry_run=True) == bring(data, target)


def test_the_thread_goes_on_where_it_was(source, target):
    bring(exported(source), target)
    alice = target.thread("support/alice")
    assert alice.resume("approve", interrupt_id="pay-1").step == 5
    alice.append("more")
    assert alice.head.messages == ["begun", "anew", "more"]
    assert target.thread("support/alice-bolder").append("more").step == 3
    assert target.verify().ok


def test_a_fork_brings_its_past_along(source, empty):
    assert bring(exported(source, "deep"), empty)["checkpoints"] == (3, 3, 0)
    assert portrait(empty) == portrait(source, ids={"deep"})
    assert [each.id for each in empty.threads()] == ["deep"]
    # The rest of the past comes later, and fits.
    assert bring(exported(source), empty)["checkpoints"] == (11, 8, 3)
    assert portrait(empty) == portrait(source)
    assert empty.verify().ok


def test_a_newer_export_brings_the_rest(source, target):
    bring(exported(source), target)
    source.thread("support/alice").resume("deny")
    source.thread("support/alice").append("and then")
    source.thread("support/alice").rewind(0)
    data = exported(source, "support/alice")
    assert bring(data, target) == {
        "threads": (1, 1, 0),
        "checkpoints": (8, 2, 6),
        "rewinds": (2, 1, 1),
        "events": (1, 1, 0),  # who answered
    }
    assert portrait(target) == portrait(source)


def test_an_older_export_changes_nothing(source, empty):
    old = exported(source)
    source.thread("support/alice").resume("deny")
    bring(exported(source), empty)
    before = portrait(empty)
    assert bring(old, empty) == {"threads": (4, 0, 4), "checkpoints": (11, 0, 11), "rewinds": (1, 0, 1)}
    assert portrait(empty) == before


def test_a_thread_that_went_on_here_is_left_alone(source, empty):
    data = exported(source)
    bring(data, empty)
    empty.thread("support/alice").resume("deny")
    empty.thread("deep").rewind(0)
    before = portrait(empty)
    assert bring(data, empty)["threads"] == (4, 0, 4)
    assert portrait(empty) == before


def test_two_lives_of_one_thread_are_a_conflict(source, empty):
    bring(exported(source), empty)
    empty.thread("support/alice").resume("deny")
    source.thread("support/alice").resume("approve")
    before = empty.stats().rows
    with pytest.raises(Conflict, match="'support/alice' has checkpoints in the target that the source"):
        bring(exported(source), empty)
    assert empty.stats().rows == before


def test_a_thread_of_that_name_is_there(source, empty):
    empty.thread("notes", namespace="bob/x").append("someone else's")
    with pytest.raises(Conflict, match="--namespace"):
        bring(exported(source), empty)
    assert [each.id for each in empty.threads(namespace=None)] == ["notes"]
    elsewhere = empty.in_namespace("other")
    bring(exported(source), elsewhere)
    assert portrait(elsewhere) == portrait(source)


def test_a_deleted_thread_can_be_imported_again(source, empty):
    data = exported(source, "notes")
    bring(data, empty)
    empty.thread("notes", namespace="bob/x").delete()
    assert bring(data, empty)["checkpoints"] == (1, 1, 0)
    assert portrait(empty) == portrait(source, ids={"notes"})


def test_what_retention_left_is_a_whole_history(empty):
    with treering.open("memory:") as source:
        thread = source.thread("t")
        for step in range(9):
            thread.append({"step": step}, tags=["keep"] if step in (1, 4) else [])
        kept = [checkpoint.id for checkpoint in thread.history()][:2]
        source.gc(keep=treering.Keep(last=2, tagged=("keep",)))
        line = [checkpoint.to_dict() for checkpoint in source.thread("t").history()]
        assert [checkpoint["id"] for checkpoint in line][:2] == kept
        bring(exported(source), empty)
        result = [checkpoint.to_dict() for checkpoint in empty.thread("t").history()]
    assert [each["messages"] for each in result] == [each["messages"] for each in line]
    assert [each["id"] for each in result] == [each["id"] for each in line]
    assert empty.verify().ok


def test_a_history_grows_with_what_was_said(empty):
    thread = empty.thread("t")
    sizes = []
    for _ in range(2):
        for _ in range(200):
            thread.append({"role": "user", "content": "x" * 100})
        sizes.append(len(exported(empty)))
    assert sizes[1] < 2.1 * sizes[0]


def test_large_histories_are_written_in_many_commits(empty):
    with treering.open("memory:") as source:
        thread = source.thread("t")
        for step in range(450):
            thread.append({"step": step}, state={"n": step})
        seen = []
        import_jsonl(
            io.BytesIO(exported(source)), empty, on_progress=lambda done, of: seen.append((done, of))
        )
        assert seen[0] == (1, 450)
        assert seen[-1] == (450, 450)
        assert portrait(empty) == portrait(source)
    assert 3 <= empty.stats().rows["commits"] < 10


def test_a_snapshot_is_kept_where_its_files_are(source, empty):
    lines = exported(source, "notes").splitlines()
    which = next(index for index, line in enumerate(lines) if b'"kind":"checkpoint"' in line)
    draft = empty.draft()
    files = draft.put(encode("as if it were a tree" * 1000), scope="/workspace/w")
    draft.event(Event(id="w", kind="snapshot", ts_us=1, scope="/workspace/w", body=files))
    empty.commit(draft)
    for address, kept in ((files, files), ("o:" + "a" * 64, None)):
        lines[which] = json.dumps({**json.loads(lines[which]), "snapshot": address}).encode()
        target = empty if kept else empty.in_namespace("other")
        bring(b"\n".join(lines), target)
        assert target.thread("notes", namespace="bob/x").head.record.snapshot == kept
        assert target.verify().ok


class TestBadFiles:
    def lines(self, source):
        return exported(source).splitlines()

    def by_id(self, store):
        """What the threads hold, whatever the order in which it was imported."""
        found = portrait(store)
        for thread in found.values():
            thread["all"].sort(key=lambda each: each[0]["id"])
        return found

    def refused(self, lines, store, *, strict=True):
        with pytest.raises(InvalidInput) as refusal:
            bring(b"\n".join(lines), store, strict=strict)
        assert store.stats().rows["events"] == 0
        return str(refusal.value)

    def test_all_bad_lines_are_named(self, source, empty):
        lines = self.lines(source)
        lines[3] = lines[3][:-5]
        lines[5] = b'{"kind":"checkpoint"}'
        lines[7] = b'{"kind":"poem"}'
        result = self.refused(lines, empty)
        assert "cannot be read, and nothing was imported (strict)" in result
        for number in (4, 6, 8):
            assert f"line {number}: " in result

    def test_only_the_first_of_many(self, source, empty):
        lines = self.lines(source)
        result = self.refused([lines[0], *[b"{}"] * 50, *lines[1:]], empty)
        assert "50 cannot be read" in result
        assert "... and 30 more" in result

    def test_a_file_that_was_cut_off(self, source, empty):
        lines = self.lines(source)
        assert "ends early" in self.refused(lines[:-1], empty, strict=False)
        assert "ends early" in self.refused([*lines[:-1], lines[-1][:-1]], empty, strict=False)
        assert "ends early" in self.refused([*lines[:5], lines[5][:-9]], empty, strict=False)

    @pytest.mark.parametrize("damage", [b"{}", b"garbage", b"\xff\xfe", b"[" * 100_000])
    def test_any_bad_line_costs_only_what_depends_on_it(self, source, damage):
        lines = self.lines(source)
        whole = self.by_id(source)
        for number in range(1, len(lines)):
            with treering.open("memory:") as store:
                data = b"\n".join([*lines[:number], damage, *lines[number + 1 :], b""])
                report = import_jsonl(io.BytesIO(data), store)
                assert f"line {number + 1}: " in report.bad[0]
                assert [
                    (each.found, each.left_out) for each in report.files if each.holds == "bad lines"
                ] == [(len(report.bad), len(report.bad))]
                assert store.verify().ok
                lost = json.loads(lines[number])
                for info in store.threads(namespace=None):
                    thread = store.thread(info.id, info.namespace or None)
                    assert thread.head.id != lost.get("id")
                    assert len(list(thread.history())) > 0
                # the same file, repaired, brings the rest
                import_jsonl(io.BytesIO(b"\n".join(lines)), store)
                assert self.by_id(store) == whole

    def test_threads_beside_a_bad_line_come_whole(self, source, empty):
        lines = self.lines(source)
        thread = next(index for index, line in enumerate(lines) if b'"thread":"notes"' in line)
        lines[thread] = b"bad"
        would = bring(b"\n".join(lines), empty, dry_run=True)
        assert bring(b"\n".join(lines), empty) == would
        assert {each.id for each in empty.threads(namespace=None)} == {
            "support/alice",
            "support/alice-bolder",
            "deep",
        }
        assert portrait(empty) == {key: each for key, each in portrait(source).items() if key[0] != "notes"}

    def test_a_line_that_is_missing(self, source, empty):
        lines = self.lines(source)
        rewind = next(index for index, line in enumerate(lines) if b'"rewind"' in line)
        del lines[rewind - 1]
        result = self.refused(lines, empty)
        assert "should hold 11 checkpoints of 4 threads and has 10" in result

    def test_a_parent_that_is_missing(self, source, empty):
        lines = self.lines(source)
        first = next(index for index, line in enumerate(lines) if b'"checkpoint"' in line)
        del lines[first]
        end = json.loads(lines[-1])
        lines[-1] = json.dumps({**end, "checkpoints": end["checkpoints"] - 1}).encode()
        assert "is neither in an earlier line nor in the store" in self.refused(lines, empty)

    def test_something_else(self, empty):
        assert "line 1: " in self.refused([b'{"role": "user", "content": "hi"}'], empty)
        assert "line 1: " in self.refused([b"\x00\x01binary"], empty)
        assert "not a history exported by" in self.refused([b""], empty, strict=False)
        assert "not a history exported by" in self.refused(
            [b'{"kind":"end","threads":0,"checkpoints":0}'], empty
        )

    def test_a_newer_format(self, empty):
        assert "upgrade" in self.refused([b'{"kind":"treering.threads","version":2}'], empty)

    @pytest.mark.parametrize(
        "change",
        [
            {"created_at": "2020-01-01T00:00:00+00:00"},
            {"created_at": "yesterday"},
            {"id": "ckpt_nonsense"},
            {"thread": ""},
            {"parent": "ckpt_7zzzzzzzzzzzzzzzzzzzzzzzzz"},
            {"lists": {"messages": {"keep": 99}}},
            {"lists": {"messages": {"add": [{"$decimal": "no number"}]}}},
            {"state": {"set": {"x": {"$datetime": "never"}}}},
            {"metadata": []},
            {"step": "one"},
        ],
        ids=lambda change: next(iter(change)) + str(next(iter(change.values())))[:12],
    )
    def test_a_line_that_lies(self, source, empty, change):
        lines = self.lines(source)
        which = [index for index, line in enumerate(lines) if b'"checkpoint"' in line][1]
        lines[which] = json.dumps({**json.loads(lines[which]), **change}).encode()
        assert f"line {which + 1}: " in self.refused(lines, empty)

    def test_no_such_file(self, empty, tmp_path):
        with pytest.raises(NotFound, match="not found"):
            import_jsonl(tmp_path / "nothing.jsonl", empty)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("replace"), st.integers(0, 2), st.integers(0, 4)),
        st.tuples(st.just("rewind"), st.integers(0, 2), st.integers(0, 5)),
        st.tuples(st.just("fork"), st.integers(0, 2), st.integers(0, 5)),
        st.tuples(st.just("state"), st.integers(0, 2), st.integers(0, 3)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(steps, st.integers(0, 25))
def test_any_history_comes_back_as_it_was(plan, cut):
    with treering.open("memory:") as source, treering.open("memory:") as target:
        source.thread("t0").append("begin")
        names = ["t0"]
        for done, (verb, which, number) in enumerate(plan):
            if done == cut:  # somebody imported an earlier state
                bring(exported(source), target)
            thread = source.thread(names[which % len(names)])
            checkpoints = list(thread.history(everything=True))
            if verb == "append":
                thread.append(*({"n": done, "i": index} for index in range(number)))
            elif verb == "replace":
                thread.checkpoint(messages=[*thread.head.messages[:number], "new"])
            elif verb == "state":
                big = {f"{key}": "x" * 2500 + str(done if key == 0 else key) for key in range(number)}
                thread.checkpoint(state={"n": done, "big": big})
            elif verb == "rewind":
                thread.rewind(checkpoints[number % len(checkpoints)].id)
            else:
                names.append(f"t{len(names)}")
                thread.fork(names[-1], at=checkpoints[number % len(checkpoints)].id)
        bring(exported(source), target)
        assert portrait(target) == portrait(source)
        assert exported(target) == exported(source)
        assert target.verify().ok
