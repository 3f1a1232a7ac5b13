"""Seals: an audit trail that an operator cannot rewrite unnoticed, although rows can be erased.

Every commit has a digest over all of its rows (`core.digests`). A *seal* is the root of a Merkle tree over
the digests of the commits since the seal before it, whose hash it names, so that each seal stands for the
whole history up to it. It is written as an event of the journal, like the record of an erasure, and
published: as a file, to a bucket or a server, or as a note in a git repository (`publish`).
Whoever holds a published seal can check the store against it (`Audit.verify`), and can be shown that a
single event is part of it (`Audit.prove`) without being shown anything else.

A published seal lists a salted hash of every row, so a check can say which row was changed, dropped or
inserted. The hashes say nothing about the rows: the salts are in the rows, and go when they are erased. Then
the commit keeps the hash, and the check reports the row as erased. **Invariant:** an erasure leaves the
digests of all commits, and so all seals and the proofs of all other events, as they were.

What a seal does not prove: that what was recorded is true, that everything was recorded, or that an erasure
was asked for (see the journal's records of erasures). Commits after the last published seal are not covered.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec

from treering.blobs.location import open_blobs
from treering.core.batch import ABSENT, Draft, Event, Expect
from treering.core.clock import Clock, to_datetime
from treering.core.digests import batch_leaf, event_form, merkle_path, merkle_root
from treering.core.encoding import encode_json
from treering.core.engine import Engine
from treering.core.ids import MAINTENANCE_SCOPE
from treering.core.query import EventQuery, each_record
from treering.core.records import CommitDigest, Problem, Record
from treering.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    MissingExtra,
    NotFound,
    RefMoved,
    TreeringError,
    Unreachable,
)
from treering.maintenance import check_proof

if TYPE_CHECKING:
    from treering.maintenance.audit import Seal

SEAL: Final = "seal"
"""The kind of the events that hold seals."""

SEAL_REF: Final = "audit/seal"
"""Names the newest seal. Each seal replaces it, so that no number is given twice."""
_PAGE: Final = 500
_SHOWN: Final = 1000
_SECOND_US: Final = 1_000_000


class SealedCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit in a seal: its numbers, its time, and the salted hash of each of its rows, by kind."""

    first_seq: int
    last_seq: int
    committed_at_us: int
    batch: str
    event: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    ref: tuple[str, ...] = ()
    text: tuple[str, ...] = ()

    @property
    def committed_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.committed_at_us)


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """A seal over the commits with numbers above ``after_seq``, up to ``to_seq``.

    ``previous`` is the hash of the seal before it. ``entries`` lists the commits; the journal holds seals
    without them, because the store has the commits.
    """

    namespace: str
    number: int
    after_seq: int
    to_seq: int
    commits: int
    root: str
    previous: str | None
    sealed_at_us: int
    format: str = "treering seal 1"
    key: str | None = None
    signature: str | None = None
    entries: tuple[SealedCommit, ...] | None = None

    @property
    def sealed_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.sealed_at_us)

    @property
    def hash(self) -> str:
        """The hash that the next seal names."""
        return check_proof.seal_hash(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the seal as it is published."""
        return msgspec.to_builtins(self)

    def to_json(self) -> bytes:
        """Return the seal as it is published, as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def header(self) -> Seal:
        """Return the seal without the list of commits."""
        return msgspec.structs.replace(self, entries=None)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between the store and a seal."""

    kind: Literal["changed", "dropped", "inserted", "reordered", "erased", "seal"]
    what: str
    detail: str


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check against seals found. Erasures are listed; they are no reason for ``ok`` to be false."""

    ok: bool
    seals: int
    commits: int
    erased: int
    unsealed: int
    """How many commits came after the last of these seals."""
    findings: tuple[Finding, ...] = ()
    problems: tuple[Problem, ...] = ()


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that an event is part of a sealed history; see `treering.maintenance.check_proof`."""

    event: str
    salt: str
    commit: dict[str, Any]
    path: tuple[tuple[str, str], ...]
    commit_path: tuple[tuple[str, str], ...]
    seal: Seal
    format: str = "treering proof 1"

    def to_json(self) -> bytes:
        """Return the proof as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


class Audit:
    """Seals of one namespace; ``store.audit``."""

    def __init__(self, engine: Engine, space: str, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock

    def seal(
        self, *, key: str | None = None, min_commits: int = 1, max_age_seconds: float | None = None
    ) -> Seal | None:
        """Seal what was committed since the last seal, and return the seal to publish.

        Args:
            key: A private key (Ed25519, PEM) to sign it with.
            min_commits: Do nothing, and return ``None``, while there are fewer commits than this.
            max_age_seconds: Seal all the same once the oldest of them is older than this.
        """
        ref = self._engine.refs(self._space, [SEAL_REF]).get(SEAL_REF)
        record = self._last_record()
        previous = None if record is None else _decoded(record.event)
        after_seq = 0 if previous is None else previous.to_seq
        commits = list(self._commits(after_seq))
        # The last seal is one of them, and alone it is no reason for another.
        written_at = 0 if record is None else record.seq
        new = [commit for commit in commits if not commit.first_seq <= written_at <= commit.last_seq]
        if not new or not self._is_due(new, min_commits, max_age_seconds):
            return None
        for commit in commits:
            _check_digest(commit)
        entries = tuple(map(sealed, commits))
        seal = Seal(
            namespace=self._space,
            number=1 if previous is None else previous.number + 1,
            after_seq=after_seq,
            to_seq=commits[-1].last_seq,
            commits=len(entries),
            root=root_of(entries).hex(),
            previous=None if previous is None else previous.hash,
            sealed_at_us=self._clock.now_us(),
        )
        if key is not None:
            seal = _signed(seal, key)
        self._record(seal, expect=ABSENT if ref is None else ref.version)
        return msgspec.structs.replace(seal, entries=entries)

    def seals(self) -> list[Seal]:
        """Return the seals of this namespace, oldest first, without their lists of commits."""
        query = EventQuery(scope=MAINTENANCE_SCOPE, kinds=(SEAL,))
        return [_decoded(each.event) for each in each_record(self._engine, self._space, query)]

    def last(self) -> Seal | None:
        """Return the newest seal, without its list of commits."""
        record = self._last_record()
        return None if record is None else _decoded(record.event)

    def export(self, number: int) -> Seal:
        """Return a seal with the list of its commits, as they are now, to publish it again."""
        for seal in self.seals():
            if seal.number == number:
                return msgspec.structs.replace(seal, entries=tuple(map(sealed, self._sealed(seal))))
        raise NotFound(f"seal {number} not found in namespace {self._space!r}; list them with: audit list")

    def evidence(self) -> Iterator[bytes]:
        """Yield the whole history as lines of JSON, for those who have seals but neither store nor treering.

        A line for each commit has its events in full with their salts, and the hashes of its other rows.
        `treering.maintenance.check_proof` compares it with published seals.
        """
        yield msgspec.json.encode({"format": check_proof.EVIDENCE, "namespace": self._space}) + b"\n"
        for commit in self._commits(0):
            listed = _listed(commit)
            kept = {name: listed[name] for name in ("id", "first_seq", "last_seq", "committed_at_us")}
            hashes = {kind: listed[kind] for kind in check_proof.KINDS[1:]}
            line = {**kept, "events": self._events_of(commit), **hashes, "refs": listed["names"]["ref"]}
            yield msgspec.json.encode(line) + b"\n"

    def _events_of(self, commit: CommitDigest) -> list[dict[str, Any]]:
        forms: dict[int, str] = {}
        while len(forms) < len(commit.events):
            after = max(forms, default=-1) + commit.first_seq
            left = len(commit.events) - len(forms)
            page = self._engine.scan(self._space, EventQuery(), after=str(after), limit=min(left, _PAGE))
            found = {each.seq - commit.first_seq: each.event for each in page.records}
            if not found or max(found) > commit.last_seq - commit.first_seq:
                raise Conflict(f"commit {commit.batch!r} was erased meanwhile; ask for the evidence again")
            forms |= {place: event_form(event).decode() for place, event in found.items()}
        salts = {each.at: each.salt for each in commit.events}
        return [
            {"salt": salts[place].hex(), "event": forms[place]}
            if place in salts
            else {"at": place, "erased": leaf.hex()}
            for place, leaf in _event_leaves(commit).items()
        ]

    def prove(self, event: str) -> Proof:
        """Return the evidence that an event is part of the sealed history.

        Raises:
            NotFound: There is no such event (an erased one cannot be shown), or it is not sealed yet.
        """
        records = self._engine.scan(self._space, EventQuery(ids=(event,)), limit=2).records
        if not records:
            raise NotFound(f"event {event!r} not found in namespace {self._space!r}")
        record = records[0]
        seals = [seal for seal in self.seals() if seal.after_seq < record.seq <= seal.to_seq]
        if not seals:
            raise NotFound(f"event {event!r} is not sealed yet; run: treering audit seal")
        commits = list(self._sealed(seals[0]))
        at = next(
            place for place, each in enumerate(commits) if each.first_seq <= record.seq <= each.last_seq
        )
        commit = commits[at]
        leaves = _event_leaves(commit)
        place = record.seq - commit.first_seq
        (salt,) = [each.salt for each in commit.events if each.at == place]
        entries = [_entry_hash(sealed(each)) for each in commits]
        entry = sealed(commit)
        proof = Proof(
            event=event_form(record.event).decode(),
            salt=salt.hex(),
            commit=_summary(entry),
            path=_hex_path(list(leaves.values()), list(leaves).index(place)),
            commit_path=_hex_path(entries, at),
            seal=seals[0],
        )
        try:
            check_proof.check_proof(msgspec.to_builtins(proof), seals[0].to_dict())
        except check_proof.Wrong as error:
            raise Corrupt(
                f"event {event!r} cannot be proven: {error}, so the store is not as it was sealed; "
                "run: treering audit verify"
            ) from error
        return proof

    def verify(
        self, against: Iterable[Seal | dict[str, Any] | bytes] = (), *, key: str | None = None
    ) -> AuditReport:
        """Check the store against published seals, and against its own; say which rows differ.

        Args:
            against: Seals as they were published. Without any, the store's own seals are checked, which an
                operator could have rewritten with everything else.
            key: The public key (PEM) that all of these seals have to be signed with.
        """
        findings: list[Finding] = []
        published = sorted((parse_seal(each) for each in against), key=lambda seal: seal.number)
        for seal in published:
            if seal.namespace != self._space:
                raise InvalidInput(
                    f"seal {seal.number} is of namespace {seal.namespace!r}, not {self._space!r}"
                )
            findings += _own_findings(seal, key)
        own: dict[int, Seal] = {}
        for seal in self.seals():
            if own.setdefault(seal.number, seal).hash != seal.hash:
                findings.append(_of_seal(seal.number, "the journal has two of them"))
        findings += _chain(own, published)
        trusted = {seal.number: seal for seal in (*own.values(), *published)}
        commits = erased = to_seq = 0
        for seal in sorted(trusted.values(), key=lambda seal: seal.number):
            stored = list(self._sealed(seal))
            commits += seal.commits
            to_seq = max(to_seq, seal.to_seq)
            differences = list(_differences(seal, stored))
            erased += sum(finding.kind == "erased" for finding in differences)
            findings += differences
        problems = [found for found in self._check() if isinstance(found, Problem)]
        return AuditReport(
            ok=not problems and all(finding.kind == "erased" for finding in findings),
            seals=len(trusted),
            commits=commits,
            erased=erased,
            unsealed=sum(1 for _ in self._commits(to_seq)),
            findings=tuple(findings[:_SHOWN]),
            problems=tuple(problems[:_SHOWN]),
        )

    def _check(self) -> Iterator[Any]:
        if self._space in self._engine.spaces():
            yield from self._engine.check(self._space)

    def _commits(self, after_seq: int) -> Iterator[CommitDigest]:
        while page := self._engine.commit_digests(self._space, after_seq=after_seq, limit=_PAGE):
            yield from page
            after_seq = page[-1].last_seq

    def _sealed(self, seal: Seal) -> Iterator[CommitDigest]:
        """Yield the commits that a seal covers, as they are now."""
        for commit in self._commits(seal.after_seq):
            if commit.last_seq > seal.to_seq:
                return
            yield commit

    def _is_due(
        self, commits: Sequence[CommitDigest], min_commits: int, max_age_seconds: float | None
    ) -> bool:
        if len(commits) >= min_commits:
            return True
        age_us = self._clock.now_us() - commits[0].committed_at_us
        return max_age_seconds is not None and age_us >= max_age_seconds * _SECOND_US

    def _last_record(self) -> Record | None:
        query = EventQuery(scope=MAINTENANCE_SCOPE, kinds=(SEAL,), newest_first=True)
        records = self._engine.scan(self._space, query, limit=1).records
        return records[0] if records else None

    def _record(self, seal: Seal, *, expect: Expect) -> None:
        """Write the seal to the journal, unless another process has written one since."""
        draft = Draft(self._space)
        draft.event(
            Event(
                id=draft.id,
                kind=SEAL,
                ts_us=seal.sealed_at_us,
                scope=MAINTENANCE_SCOPE,
                data=encode_json(seal.to_dict()),
            )
        )
        value = encode_json({"seal": seal.number, "event": draft.id})
        draft.set_ref(SEAL_REF, value, scope=MAINTENANCE_SCOPE, expect=expect)
        try:
            self._engine.commit(draft.batch())
        except RefMoved:
            raise Conflict(f"another process has written seal {seal.number}; seal again") from None


def parse_seal(given: Seal | dict[str, Any] | bytes) -> Seal:
    """Return a seal as it was published: as JSON, or decoded."""
    if isinstance(given, Seal):
        return given
    try:
        if isinstance(given, bytes):
            return msgspec.json.decode(given, type=Seal)
        return msgspec.convert(given, Seal)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"not a seal: {error}; pass what `treering audit seal` wrote") from error


def new_key() -> tuple[str, str]:
    """Return a new private key to sign seals with, and its public key, both as PEM."""
    crypto = _cryptography()
    private = crypto.ed25519.Ed25519PrivateKey.generate()
    encoding = crypto.serialization
    return (
        private.private_bytes(
            encoding.Encoding.PEM, encoding.PrivateFormat.PKCS8, encoding.NoEncryption()
        ).decode(),
        private.public_key()
        .public_bytes(encoding.Encoding.PEM, encoding.PublicFormat.SubjectPublicKeyInfo)
        .decode(),
    )


def sealed(commit: CommitDigest) -> SealedCommit:
    """Return a commit as seals list it."""
    leaves = commit.leaves
    return SealedCommit(
        first_seq=commit.first_seq,
        last_seq=commit.last_seq,
        committed_at_us=commit.committed_at_us,
        batch=batch_leaf(commit.batch).hex(),
        event=tuple(each.hex() for each in _event_leaves(commit).values()),
        body=tuple(each.hex() for each in leaves.bodies),
        append=tuple(each.leaf.hex() for each in leaves.appends),
        ref=tuple(each.hex() for each in leaves.refs),
        text=tuple(each.hex() for each in leaves.texts),
    )


def root_of(entries: Sequence[SealedCommit]) -> bytes:
    """Return the root of a seal."""
    return merkle_root([_entry_hash(entry) for entry in entries])


def _event_leaves(commit: CommitDigest) -> dict[int, bytes]:
    """Return the leaves of the events of a commit by position: of those stored, and of those erased."""
    found = dict(commit.leaves.erased) | {each.at: each.leaf for each in commit.events}
    return dict(sorted(found.items()))


def _check_digest(commit: CommitDigest) -> None:
    root = merkle_root(list(_event_leaves(commit).values()))
    if commit.leaves.digest(commit.batch, root) != commit.digest:
        raise Corrupt(
            f"commit {commit.batch!r} is not as it was written, so it cannot be sealed; "
            "run verify, then restore it from a backup or a copy"
        )


def _summary(entry: SealedCommit) -> dict[str, Any]:
    rows = {kind: [bytes.fromhex(each) for each in getattr(entry, kind)] for kind in check_proof.KINDS}
    return {
        "first_seq": entry.first_seq,
        "last_seq": entry.last_seq,
        "committed_at_us": entry.committed_at_us,
        "batch": entry.batch,
        "counts": {kind: len(leaves) for kind, leaves in rows.items()},
        "roots": {kind: merkle_root(leaves).hex() for kind, leaves in rows.items()},
    }


def _entry_hash(entry: SealedCommit) -> bytes:
    return check_proof.entry_hash(_summary(entry))


def _hex_path(leaves: Sequence[bytes], index: int) -> tuple[tuple[str, str], ...]:
    return tuple((side, sibling.hex()) for side, sibling in merkle_path(leaves, index))


def _decoded(event: Event) -> Seal:
    try:
        return msgspec.json.decode(event.data or b"", type=Seal)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"seal {event.id!r} cannot be read ({error}); run verify") from error


def _cryptography() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingExtra("signing a seal", "audit") from None
    return SimpleNamespace(serialization=serialization, ed25519=ed25519)


def _signed(seal: Seal, key: str) -> Seal:
    crypto = _cryptography()
    try:
        private = crypto.serialization.load_pem_private_key(key.encode(), None)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"not a private key in PEM: {error}; make one with: treering audit key") from None
    if not isinstance(private, crypto.ed25519.Ed25519PrivateKey):
        raise InvalidInput("seals are signed with Ed25519; make a key with: treering audit key")
    encoding = crypto.serialization
    public = private.public_key().public_bytes(encoding.Encoding.Raw, encoding.PublicFormat.Raw)
    signature = private.sign(check_proof.signed_bytes(seal.to_dict()))
    return msgspec.structs.replace(seal, key=public.hex(), signature=signature.hex())


# Comparing


def _own_findings(seal: Seal, key: str | None) -> list[Finding]:
    """Check the signature of a published seal, and that its list of commits has its root."""
    plain = seal.to_dict()
    try:
        if seal.signature or key is not None:
            _cryptography()
        check_proof.check_signature(plain, key)
        check_proof.check_entries(plain)
    except (check_proof.Wrong, TypeError, ValueError) as error:
        return [_of_seal(seal.number, str(error))]
    return []


def _chain(own: dict[int, Seal], published: Sequence[Seal]) -> list[Finding]:
    """Compare the seals in the journal with each other, and with the published ones."""
    found: list[Finding] = []
    for seal in published:
        mine = own.get(seal.number)
        if mine is None:
            found.append(_of_seal(seal.number, "it was published, and is missing from the journal"))
        elif mine.hash != seal.hash:
            found.append(_of_seal(seal.number, "the journal has another one than was published"))
    for number in range(1, max(own, default=0) + 1):
        if number not in own:
            found.append(_of_seal(number, "it is missing from the journal"))
        elif number - 1 in own or number == 1:
            before = own.get(number - 1)
            expected = (None, 0) if before is None else (before.hash, before.to_seq)
            if (own[number].previous, own[number].after_seq) != expected:
                what = (
                    "it is not the beginning"
                    if before is None
                    else f"it does not continue seal {number - 1}, as that is now"
                )
                found.append(_of_seal(number, what))
    return found


def _of_seal(number: int, detail: str) -> Finding:
    return Finding(kind="seal", what=f"seal {number}", detail=detail)


def _differences(seal: Seal, stored: Sequence[CommitDigest]) -> Iterator[Finding]:
    """Yield what differs between a seal and the commits that are stored, and which rows were erased."""
    now = list(map(_listed, stored))
    for found in check_proof.differences(seal.to_dict(), now):
        if found["kind"] == "seal":  # it does not list its commits
            yield from _undigested(stored)
        yield msgspec.convert(found, Finding)


def _listed(commit: CommitDigest) -> dict[str, Any]:
    """Return a commit as a seal lists it, with the names of its rows (see `check_proof.differences`)."""
    leaves = _event_leaves(commit)
    ids = {each.at: each.id for each in commit.events}
    refs = commit.refs if len(commit.refs) == len(commit.leaves.refs) else ()
    return {
        **msgspec.to_builtins(sealed(commit)),
        "id": commit.batch,
        "names": {"event": [ids.get(place) for place in leaves], "ref": refs},
        "erased": [place for place in commit.leaves.erased if place not in ids],
    }


def _undigested(stored: Iterable[CommitDigest]) -> Iterator[Finding]:
    for commit in stored:
        try:
            _check_digest(commit)
        except Corrupt:
            yield Finding(
                kind="changed", what=f"commit {commit.batch!r}", detail="its rows do not have its digest"
            )


WEBHOOK: Final = "webhook:"
GIT: Final = "git:"
NOTES: Final = "treering"
"""The git notes that hold seals: ``git log --notes=treering``."""
_TIMEOUT_SECONDS: Final = 30.0


def publish(seal: Seal, to: str) -> str:
    """Publish a seal where whoever runs the store cannot rewrite it; return where it is.

    ===============================  ==================================================================
    ``folder``, ``s3://...``         a file or object for each seal, never replaced
    ``seal.json``                    one file, with the newest seal
    ``webhook:https://host/path``    one POST for each seal, without its list of commits
    ``git:path/to/repository``       a note (``refs/notes/treering``) on its newest commit, likewise
    ===============================  ==================================================================
    """
    if to.startswith(WEBHOOK):
        return _post(seal, to.removeprefix(WEBHOOK))
    if to.startswith(GIT):
        return _note(seal, Path(to.removeprefix(GIT)))
    if to.endswith(".json") and "://" not in to:
        path = Path(to)
        path.write_bytes(seal.to_json())
        return str(path)
    blobs = open_blobs(to)
    name = f"seal-{seal.number:08}.json"
    try:
        blobs.put(name, seal.to_json(), if_absent=True)
    except Conflict:
        published = blobs.read(name)
        if published is None or published.data != seal.to_json():
            raise Conflict(
                f"{to} has another {name}: it belongs to another store, or this one was rewritten since; "
                "compare them with: treering audit verify --against"
            ) from None
    return f"{to.rstrip('/')}/{name}"


def _post(seal: Seal, url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidInput(f"{url!r} is not a webhook; use {WEBHOOK}https://host/path")
    headers = {"content-type": "application/json", "user-agent": "treering"}
    request = Request(url, seal.header().to_json(), headers, method="POST")  # noqa: S310 - checked above
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
            response.read()
    except (URLError, OSError) as error:
        raise Unreachable(f"{url} did not take seal {seal.number}: {error}") from error
    return url


def _note(seal: Seal, repository: Path) -> str:
    command = ["git", "-C", str(repository), "notes", f"--ref={NOTES}", "append", "--file=-"]
    try:
        subprocess.run(  # noqa: S603 - git, by its name
            command, input=seal.header().to_json(), capture_output=True, check=True
        )
    except FileNotFoundError:
        raise Unreachable("git is not installed; publish the seal elsewhere") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise TreeringError(f"git could not note seal {seal.number} in {repository}: {said}") from error
    return f"{repository} (git notes --ref={NOTES})"
