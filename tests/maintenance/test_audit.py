"""Seals: what an operator changes is named, what was erased is known to be erased, and proofs hold."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import cryptography
import msgspec
import pytest

import treering
from treering.core.batch import Draft
from treering.core.clock import ManualClock
from treering.core.content import Content, list_address
from treering.core.digests import batch_leaf, event_form, leaf, merkle_root
from treering.core.records import CommitRow, EventRow, Slice
from treering.core.retention import Keep
from treering.errors import Conflict, Corrupt, Forbidden, InvalidInput, NotFound
from treering.maintenance import check_proof
from treering.maintenance.audit import SEAL_REF, Audit, AuditReport, Seal, new_key, parse_seal
from treering.server.auth import Access
from treering.server.permissions import check_batch
from treering.store import Store
from treering.testing import batches

SECRET = "canary-4711"


def work(store: Store, *names: str) -> None:
    """Write one commit for each name: an event with data, a body, an item, a ref."""
    for at, name in enumerate(names):
        draft = store.draft(f"batch-{name}")
        body = draft.put(Content("text", f"body of {name}".encode()), scope=f"/thread/{name}")
        draft.event(batches.event(id=name, scope=f"/thread/{name}", data=b'{"n":%d}' % at, body=body))
        draft.event(batches.event(id=f"{name}-2", scope=f"/thread/{name}", data=b'{"n":0}'))
        draft.append(f"list-{name}", Content("text", name.encode()), scope=f"/thread/{name}", at=0)
        links = (list_address(f"list-{name}"),)
        draft.set_ref(f"ref-{name}", name.encode(), scope=f"/thread/{name}", links=links)
        store.commit(draft)


def found(report: AuditReport) -> set[tuple[str, str]]:
    return {(each.kind, each.what) for each in report.findings}


# Sealing
def test_a_seal_covers_what_was_committed_since_the_last_one(store):
    work(store, "a", "b")
    first = store.audit.seal()
    assert (first.number, first.commits, first.previous) == (1, 2, None)
    assert store.audit.seal() is None, "nothing came since, but the seal itself"
    work(store, "c")
    second = store.audit.seal()
    assert (second.number, second.commits, second.previous) == (2, 2, first.hash)
    assert second.after_seq == first.to_seq
    assert [seal.hash for seal in store.audit.seals()] == [first.hash, second.hash]
    report = store.audit.verify([first, second])
    assert report == AuditReport(ok=True, seals=2, commits=4, erased=0, unsealed=1)


def test_a_seal_waits_for_enough_commits_or_enough_time(store):
    work(store, "a", "b")
    assert store.audit.seal(min_commits=3, max_age_seconds=3600) is None
    assert store.audit.seal(min_commits=2) is not None
    work(store, "c")
    assert store.audit.seal(min_commits=99, max_age_seconds=0) is not None


def test_a_seal_is_published_as_json(store):
    work(store, "a")
    seal = store.audit.seal()
    assert parse_seal(seal.to_json()) == parse_seal(json.loads(seal.to_json())) == seal
    assert store.audit.export(1) == seal
    check_proof.check_entries(json.loads(seal.to_json()))
    with pytest.raises(InvalidInput, match="not a seal"):
        parse_seal(b"{}")
    with pytest.raises(NotFound, match="seal 7"):
        store.audit.export(7)


def test_a_signature_is_checked(store):
    private, public = new_key()
    work(store, "a")
    seal = store.audit.seal(key=private)
    assert store.audit.verify([seal], key=public).ok
    assert found(store.audit.verify([seal], key=new_key()[1])) == {("seal", "seal 1")}
    forged = msgspec.structs.replace(seal, commits=7)
    assert ("seal", "seal 1") in found(store.audit.verify([forged]))
    unsigned = msgspec.structs.replace(seal, signature=None)
    assert "not signed" in store.audit.verify([unsigned], key=public).findings[0].detail
    work(store, "b")
    with pytest.raises(InvalidInput, match="private key"):
        store.audit.seal(key="no key")


def test_a_seal_of_another_namespace_is_refused(store):
    work(store, "a")
    seal = store.audit.seal()
    with pytest.raises(InvalidInput, match="namespace"):
        store.in_namespace("other").audit.verify([seal])


def test_nobody_can_take_the_number_of_a_seal(store):
    """Whoever may write chooses the ids of batches and events; those of seals cannot be guessed."""
    for number in range(1, 4):
        draft = store.draft(f"seal-{number}")
        draft.event(batches.event(id=f"seal-{number}"))
        store.commit(draft)
    first = store.audit.seal()
    assert first.commits == 3
    work(store, "a")
    assert store.audit.seal().number == 2
    change = Draft(store.space)
    change.set_ref(SEAL_REF, b"{}", scope="/thread/x")
    with pytest.raises(Forbidden, match="maintenance"):
        check_batch(Access(project="default", scope="write", name="agent"), change.batch())


def test_of_two_processes_that_seal_at_once_one_succeeds(tmp_path):
    class Racing(ManualClock):
        def now_us(self) -> int:
            if not seals:
                seals.append(Audit(store.engine, store.space, clock=ManualClock()).seal())
            return super().now_us()

    seals: list[Seal] = []
    with treering.open(tmp_path / "store", durability="fast") as store:
        work(store, "a")
        with pytest.raises(Conflict, match="seal again"):
            Audit(store.engine, store.space, clock=Racing()).seal()
        assert [seal.hash for seal in store.audit.seals()] == [seal.hash for seal in seals]
        assert store.audit.verify(seals).ok


# An operator who rewrites everything: rows, checksums, leaves and digests fit together again.
Forge = Callable[[Slice], Slice]


def rewritten(store: Store, forge: Forge) -> Store:
    """A store as if it had been written with other rows: nothing in it contradicts itself."""
    other = treering.open("memory:")
    for part in store.engine.export(store.space):
        other.engine.load(other.space, forge(part))
    other.engine.reindex(other.space)
    assert other.verify().ok or other.verify().problems[0].kind == "counter"
    return other


def digests_of(forged: list[EventRow]) -> Callable[[Slice], Slice]:
    """Compute the digests of commits again, from forged events."""

    def change(part: Slice) -> Slice:
        commits: list[CommitRow] = []
        for row in part.commits:
            own = [each for each in forged if each.record.batch == row.receipt.batch]
            own.sort(key=lambda each: each.record.seq)
            root = merkle_root([leaf("event", each.salt, event_form(each.record.event)) for each in own])
            leaves = msgspec.structs.replace(row.leaves, events=len(own))
            digest = leaves.digest(row.receipt.batch, root)
            commits.append(msgspec.structs.replace(row, leaves=leaves, digest=digest))
        return msgspec.structs.replace(part, commits=tuple(commits))

    return change


def forged_events(store: Store, change: Callable[[list[EventRow]], list[EventRow]]) -> Store:
    rows = [row for part in store.engine.export(store.space) for row in part.events]
    forged = change(rows)
    refit = digests_of(forged)
    kept = {row.record.seq: row for row in forged}

    def forge(part: Slice) -> Slice:
        events = tuple(kept[row.record.seq] for row in part.events if row.record.seq in kept)
        return refit(msgspec.structs.replace(part, events=events))

    return rewritten(store, forge)


def edited(row: EventRow, **fields: Any) -> EventRow:
    event = msgspec.structs.replace(row.record.event, **fields)
    return msgspec.structs.replace(row, record=msgspec.structs.replace(row.record, event=event))


@pytest.fixture
def history(tmp_path) -> tuple[Store, Seal]:
    with treering.open(tmp_path / "history", durability="fast") as store:
        work(store, "a", "b", "c")
        yield store, store.audit.seal()


def compared(store: Store, seal: Seal) -> AuditReport:
    """Verify a store, and its evidence without the store: both find the same differences from a seal."""
    report = store.audit.verify([seal])
    lines = [line.decode() for line in store.audit.evidence()]
    outside = check_proof.check_evidence(lines, [seal.to_dict()], None)
    assert {(each["kind"], each["what"]) for each in outside} == {
        each for each in found(report) if each[0] != "seal"
    }
    return report


def test_a_changed_event_is_named_although_everything_fits_again(history):
    store, seal = history
    other = forged_events(
        store,
        lambda rows: [edited(row, data=b'{"n":9}') if row.record.event.id == "b" else row for row in rows],
    )
    report = compared(other, seal)
    assert not report.ok
    assert ("changed", "event 'b'") in found(report)
    assert {what for kind, what in found(report) if kind == "changed"} == {"event 'b'"}


def test_a_dropped_event_is_named(history):
    store, seal = history
    other = forged_events(store, lambda rows: [row for row in rows if row.record.event.id != "b-2"])
    assert ("dropped", "event 2 of 2 of commit 'batch-b'") in found(compared(other, seal))


def test_events_in_another_order_are_named(history):
    store, seal = history

    def swap(rows: list[EventRow]) -> list[EventRow]:
        one, two = (next(row for row in rows if row.record.event.id == name) for name in ("b", "b-2"))
        first = msgspec.structs.replace(one, record=msgspec.structs.replace(two.record, seq=one.record.seq))
        second = msgspec.structs.replace(two, record=msgspec.structs.replace(one.record, seq=two.record.seq))
        first, second = (
            msgspec.structs.replace(first, salt=two.salt),
            msgspec.structs.replace(second, salt=one.salt),
        )
        return [first if row is one else second if row is two else row for row in rows]

    names = found(compared(forged_events(store, swap), seal))
    assert ("reordered", "the events of commit 'batch-b'") in names


def test_a_dropped_and_an_inserted_commit_are_named(history):
    store, seal = history

    def rename(part: Slice) -> Slice:
        def named(batch: str) -> str:
            return "batch-x" if batch == "batch-b" else batch

        commits = [
            msgspec.structs.replace(
                row, receipt=msgspec.structs.replace(row.receipt, batch=named(row.receipt.batch))
            )
            for row in part.commits
        ]
        return msgspec.structs.replace(
            part, commits=tuple(commits), bodies=(), events=(), lists=(), items=(), refs=()
        )

    other = treering.open("memory:")
    for part in store.engine.export(store.space):
        other.engine.load(other.space, rename(part))
    names = found(compared(other, seal))
    assert ("inserted", "commit 'batch-x'") in names
    assert ("dropped", "commit 3") in names
    assert batch_leaf("batch-b") != batch_leaf("batch-x")


def test_a_ref_that_was_replaced_with_its_leaf_is_named(history):
    store, seal = history

    def forge(part: Slice) -> Slice:
        commits = [
            msgspec.structs.replace(
                row, leaves=msgspec.structs.replace(row.leaves, refs=(leaf("ref", bytes(16), b"other"),))
            )
            if row.receipt.batch == "batch-c"
            else row
            for row in part.commits
        ]
        return msgspec.structs.replace(part, commits=tuple(commits))

    other = treering.open("memory:")
    for part in store.engine.export(store.space):
        other.engine.load(other.space, forge(part))
    assert ("changed", "ref 'ref-c'") in found(compared(other, seal))


def test_a_rewritten_seal_is_noticed(history):
    """Who rewrites the seals in the journal too still differs from the published one."""
    store, seal = history
    forged = msgspec.structs.replace(seal.header(), root="0" * 64)
    rows = [row for part in store.engine.export(store.space) for row in part.events]
    other = forged_events(
        store,
        lambda _: [
            edited(row, data=msgspec.json.encode(forged)) if row.record.event.kind == "seal" else row
            for row in rows
        ],
    )
    assert ("seal", "seal 1") in found(other.audit.verify([seal]))


def test_a_lost_seal_is_noticed(history):
    store, seal = history
    other = forged_events(store, lambda rows: [row for row in rows if row.record.event.kind != "seal"])
    assert ("seal", "seal 1") in found(other.audit.verify([seal]))


@pytest.mark.parametrize("fields", [{"after_seq": 7}, {"previous": "0" * 64}, {"number": 3}])
def test_a_gap_between_seals_is_noticed(history, fields):
    """A seal that does not begin where the one before it ended leaves something out."""
    store, seal = history
    work(store, "d")
    forged = msgspec.structs.replace(store.audit.seal().header(), **fields)

    def forge(row: EventRow) -> EventRow:
        if row.record.event.kind == "seal" and b'"number":2' in row.record.event.data:
            return edited(row, data=msgspec.json.encode(forged))
        return row

    other = forged_events(store, lambda rows: [forge(row) for row in rows])
    assert any(kind == "seal" for kind, _ in found(other.audit.verify([seal])))


def test_seals_that_are_no_seals_are_reported(history):
    store, seal = history
    entry = msgspec.structs.replace(seal.entries[0], event=("no hash",))
    for odd in (
        msgspec.structs.replace(seal, entries=(entry,)),
        msgspec.structs.replace(seal, key="no key", signature="none"),
        msgspec.structs.replace(seal, root="", number=-1),
    ):
        report = store.audit.verify([odd])
        assert not report.ok
        assert any(kind == "seal" for kind, _ in found(report))


KEYS = {"body": "key", "item": "key", "list": "no", "ref": "name", "event": "id", "commits": "no"}


@pytest.mark.parametrize("table", KEYS)
def test_a_row_that_an_operator_deletes_is_not_taken_for_an_erased_one(tmp_path, table):
    key = KEYS[table]
    with treering.open(tmp_path / "store", durability="fast") as store:
        work(store, "a", "b")
        seal = store.audit.seal()
    with closing(sqlite3.connect(tmp_path / "store" / "treering.db")) as connection, connection:
        connection.execute(f"DELETE FROM {table} WHERE {key} = (SELECT min({key}) FROM {table})")
    with treering.open(tmp_path / "store") as store:
        assert not store.audit.verify([seal]).ok


def test_a_store_that_lost_its_newest_commits_is_noticed(history, tmp_path):
    store, _ = history
    work(store, "d")
    seal = store.audit.seal()
    with treering.open(tmp_path / "older", durability="fast") as other:
        work(other, "a", "b", "c")
        report = other.audit.verify([seal])
    assert not report.ok
    assert any(kind == "dropped" for kind, _ in found(report))


def test_a_damaged_row_is_not_sealed(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store:
        work(store, "a")
    with closing(sqlite3.connect(tmp_path / "store" / "treering.db")) as connection, connection:
        connection.execute("UPDATE event SET name = 'other' WHERE id = 'a'")
    with treering.open(tmp_path / "store") as store, pytest.raises(Corrupt, match="cannot be sealed"):
        store.audit.seal()


# Erasure
def test_erased_rows_are_known_to_be_erased_and_other_proofs_hold(store):
    work(store, "a", "b", SECRET)
    seal = store.audit.seal()
    proof = store.audit.prove("a")
    store.forget(scope=f"/thread/{SECRET}")
    report = store.audit.verify([seal])
    assert report.ok
    assert report.erased == 2
    assert found(report) == {("erased", "event 5"), ("erased", "event 6")}
    assert store.audit.prove("a") == proof
    with pytest.raises(NotFound):
        store.audit.prove(SECRET)
    assert SECRET.encode() not in seal.to_json() + proof.to_json()
    assert store.audit.export(1) == seal


def test_what_retention_drops_counts_as_erased(store):
    thread = store.thread("t")
    checkpoints = [
        thread.append({"role": "user", "content": SECRET if at < 5 else "kept"}) for at in range(6)
    ]
    seal = store.audit.seal()
    proof = store.audit.prove(checkpoints[-1].id)
    store.gc(keep=Keep(last=1), grace_seconds=0)
    report = store.audit.verify([seal])
    assert (report.ok, report.erased) == (True, 5)
    assert store.audit.prove(checkpoints[-1].id) == proof
    assert store.audit.export(1) == seal
    assert store.audit.verify([seal, store.audit.seal()]).ok


def test_an_erased_row_cannot_be_replaced_by_another(history):
    store, seal = history
    store.forget(scope="/thread/b")
    draft = Draft(store.space, id="later")
    draft.event(batches.event(id="b", scope="/thread/b", data=b'{"n":9}'))
    store.commit(draft)
    report = store.audit.verify([seal])
    assert report.ok, "it is a new event, which the seal says nothing about"
    with pytest.raises(NotFound, match="not sealed"):
        store.audit.prove("b")


def test_no_salt_of_an_erased_row_is_left(history, tmp_path):
    store, _ = history
    salts = [
        row.salt
        for part in store.engine.export(store.space)
        for row in (*part.events, *part.lists, *part.refs, *part.bodies)
        if b"/thread/b" in msgspec.json.encode(row)
    ]
    assert len(salts) == 5
    store.forget(scope="/thread/b")
    files = [path.read_bytes() for path in (tmp_path / "history").rglob("*") if path.is_file()]
    assert not [salt for salt in salts for data in files if salt in data]


def test_a_copy_and_a_backup_are_checked_against_the_same_seal(history, tmp_path):
    store, seal = history
    store.backup(tmp_path / "backup")
    store.copy_to(str(tmp_path / "copy"))
    for folder in ("backup", "copy"):
        with treering.open(tmp_path / folder) as other:
            assert other.audit.verify([seal]).ok


# Proofs
def proven(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the checker as a stranger does: isolated, without site packages."""
    command = [sys.executable, "-I", "-S", check_proof.__file__, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_proof_is_checked_with_the_standard_library_alone(store, tmp_path: Path):
    work(store, "a", "b", "c")
    seal = store.audit.seal()
    (tmp_path / "seal.json").write_bytes(seal.to_json())
    proof = store.audit.prove("b-2")
    (tmp_path / "proof.json").write_bytes(proof.to_json())
    done = proven(tmp_path / "proof.json", "--seal", tmp_path / "seal.json")
    assert (done.returncode, done.stdout) == (0, "event 'b-2' is part of seal 1 (not signed)\n")
    forged = json.loads(proof.to_json())
    forged["event"] = forged["event"].replace('"b-2"', '"b-3"')
    (tmp_path / "forged.json").write_text(json.dumps(forged))
    done = proven(tmp_path / "forged.json", "--seal", tmp_path / "seal.json")
    assert (done.returncode, done.stdout) == (1, "not proven: the event is not one of its commit\n")
    moved = json.loads(proof.to_json())
    moved["commit"]["first_seq"] += 1
    with pytest.raises(check_proof.Wrong, match="not in seal"):
        check_proof.check_proof(moved, seal.to_dict())


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of an auditor: nothing is installed but ``cryptography``."""
    folder = tmp_path / "bare"
    folder.mkdir()
    installed = Path(cryptography.__file__).parent.parent
    for path in (installed / "cryptography", installed / "cffi", *installed.glob("_cffi_backend*")):
        (folder / path.name).symlink_to(path)
    return {"PYTHONPATH": str(folder)}


def test_a_history_is_verified_offline_with_cryptography_alone(history, tmp_path: Path, bare):
    store, first = history
    private, public = new_key()
    work(store, "d")
    second = store.audit.seal(key=private)
    store.forget(thread="a")
    third = store.audit.seal(key=private)
    files = [tmp_path / f"{seal.number}.json" for seal in (first, second, third)]
    for file, seal in zip(files, (first, second, third), strict=True):
        file.write_bytes(seal.to_json())
    (tmp_path / "public.pem").write_text(public)
    evidence = list(store.audit.evidence())
    checker = shutil.copy(check_proof.__file__, tmp_path)

    def checked(lines: list[bytes], *seals: Path, key: bool = False) -> tuple[int, str]:
        (tmp_path / "evidence.jsonl").write_bytes(b"".join(lines))
        with_key = ["--key", tmp_path / "public.pem"] if key else []
        arguments = [checker, tmp_path / "evidence.jsonl", "--seal", *seals, *with_key]
        done = subprocess.run(
            [sys.executable, "-S", *map(str, arguments)],
            env=bare,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.stderr
        return done.returncode, done.stdout

    assert checked(evidence, *files) == (0, "as it was sealed; seals: 3, events erased: 2\n")
    assert checked(evidence, *files[1:], key=True)[0] == 0
    assert checked(evidence, *files, key=True) == (
        *(1, "seal: seal 1: seal 1 is not signed\n1 differences; seals: 3, events erased: 0\n"),
    )
    at = next(number for number, line in enumerate(evidence) if b'"id":"batch-d"' in line)
    changed = [
        *evidence[:at],
        evidence[at].replace(b'\\"id\\":\\"d-2\\"', b'\\"id\\":\\"d-3\\"'),
        *evidence[at + 1 :],
    ]
    assert changed != evidence
    assert "changed: event 'd-3': it is not the event that was sealed\n" in checked(changed, *files)[1]
    assert "dropped: commit " in checked([*evidence[:at], *evidence[at + 1 :]], *files)[1]
    text = files[1].read_text()
    files[1].write_text(text.replace(second.signature, first.hash * 2))
    assert "the signature of seal 2 is not valid" in checked(evidence, *files)[1]
    no_treering = [sys.executable, "-S", "-c", "import treering"]
    assert subprocess.run(no_treering, env=bare, capture_output=True, check=False, cwd=tmp_path).returncode


def test_an_event_is_proven_once_it_is_sealed(store):
    work(store, "a")
    with pytest.raises(NotFound, match="not sealed"):
        store.audit.prove("a")
    with pytest.raises(NotFound, match="not found"):
        store.audit.prove("nothing")
    seal = store.audit.seal()
    for name in ("a", "a-2"):
        proof = json.loads(store.audit.prove(name).to_json())
        assert check_proof.check_proof(proof, seal.to_dict())["id"] == name


def test_the_async_store_seals_and_verifies(tmp_path):
    async def main() -> None:
        async with treering.open_async(tmp_path / "store") as store:
            draft = store.draft()
            draft.event(batches.event(id="a"))
            await store.commit(draft)
            seal = await store.audit.seal()
            assert seal is not None
            assert (await store.audit.verify([seal])).ok
            assert (await store.audit.prove("a")).seal.number == 1

    asyncio.run(main())
