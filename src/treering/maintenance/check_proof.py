"""Check a proof, or a whole history, against published seals: without treering and without a store.

Copy this file to where it is needed: it uses Python's standard library, and ``cryptography`` if there is a
signature to check.

    python check_proof.py proof.json --seal seal.json [--key public.pem]
    python check_proof.py evidence.jsonl --seal seal-1.json seal-2.json [--key public.pem]

A proof is of one event (``treering audit prove``), evidence is of all of them (``treering audit evidence``):
a line for each commit, with its events in full and their salts, and the hashes of its other rows. It exits
with 0 if everything is as it was sealed. Otherwise it exits with 1, and says why a proof does not hold, or
which rows of the evidence were changed, dropped, inserted or reordered.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from hashlib import sha256
from pathlib import Path
from typing import Any

EVIDENCE = "treering evidence 1"
KINDS = ("event", "body", "append", "ref", "text")
SIGNED = (
    "format",
    "namespace",
    "number",
    "after_seq",
    "to_seq",
    "commits",
    "root",
    "previous",
    "sealed_at_us",
)


class Wrong(Exception):
    """The proof or the seal does not hold; says why."""


def signed_bytes(seal: dict[str, Any]) -> bytes:
    """Return what a seal's hash and its signature are computed over."""
    return json.dumps({name: seal[name] for name in SIGNED}, sort_keys=True, separators=(",", ":")).encode()


def seal_hash(seal: dict[str, Any]) -> str:
    """Return the hash of a seal, which the next one names."""
    return sha256(signed_bytes(seal)).hexdigest()


def entry_hash(commit: dict[str, Any]) -> bytes:
    """Return the hash of a commit in a seal: its numbers, its time and its digest."""
    roots = {kind: bytes.fromhex(commit["roots"][kind]) for kind in KINDS}
    counts = " ".join(str(commit["counts"][kind]) for kind in KINDS)
    digest = sha256(
        f"treering commit 1 {counts}\n".encode()
        + bytes.fromhex(commit["batch"])
        + b"".join(roots[kind] for kind in KINDS)
    ).digest()
    place = f"{commit['first_seq']} {commit['last_seq']} {commit['committed_at_us']}\n"
    return sha256(b"\x03" + place.encode() + digest).digest()


def climb(leaf: bytes, path: list[list[str]]) -> bytes:
    """Return the root of a Merkle tree from a leaf and the siblings on its way."""
    for side, sibling in path:
        other = bytes.fromhex(sibling)
        leaf = sha256(b"\x01" + (other + leaf if side == "left" else leaf + other)).digest()
    return leaf


def root_of(leaves: list[bytes]) -> bytes:
    """Return the root of a Merkle tree."""
    level = leaves or [bytes(32)]
    while len(level) > 1:
        pairs = [sha256(b"\x01" + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def check_signature(seal: dict[str, Any], key: str | None) -> str:
    """Check the signature of a seal; return who signed it, in words.

    Args:
        key: The public key that it has to be signed with (PEM). Without it, the signature only says that
            whoever has the key that the seal names made it.
    """
    if not seal.get("signature"):
        if key is not None:
            raise Wrong(f"seal {seal['number']} is not signed")
        return "not signed"
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    if key is not None:
        trusted = load_pem_public_key(key.encode())
        raw = trusted.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
        if raw != seal["key"]:
            raise Wrong(f"seal {seal['number']} is signed with another key: {seal['key']}")
    try:
        signer = Ed25519PublicKey.from_public_bytes(bytes.fromhex(seal["key"]))
        signer.verify(bytes.fromhex(seal["signature"]), signed_bytes(seal))
    except (InvalidSignature, ValueError):
        raise Wrong(f"the signature of seal {seal['number']} is not valid") from None
    return f"signed with {seal['key']}"


def check_entries(seal: dict[str, Any]) -> None:
    """Check that the commits listed in a seal are those of its root."""
    entries = seal.get("entries")
    if entries is None:
        return
    if len(entries) != seal["commits"] or root_of_entries(entries) != seal["root"]:
        raise Wrong(f"the commits listed in seal {seal['number']} are not those of its root")


def root_of_entries(entries: Iterable[dict[str, Any]]) -> str:
    """Return the root of a seal over commits, each with the hashes of its rows by kind."""
    hashes: list[bytes] = []
    for entry in entries:
        roots = {kind: root_of([bytes.fromhex(each) for each in entry[kind]]).hex() for kind in KINDS}
        counts = {kind: len(entry[kind]) for kind in KINDS}
        hashes.append(entry_hash({**entry, "roots": roots, "counts": counts}))
    return root_of(hashes).hex()


def differences(seal: dict[str, Any], now: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield what differs between a seal and the commits that are there now, and which events were erased.

    Args:
        now: The commits as a seal lists them, each also with its ``id``, the ``names`` of its rows where they
            are known, by kind, and the positions of the events that were ``erased``.
    """
    if root_of_entries(now) != seal["root"]:
        if seal.get("entries") is None:
            detail = (
                f"the commits numbered {seal['after_seq'] + 1} to {seal['to_seq']} are not those that were "
                "sealed; check against the published seal, which lists them, to learn which rows differ"
            )
            yield _finding("seal", f"seal {seal['number']}", detail)
        else:
            yield from _compared(seal, now)
    for commit in now:
        for place in commit["erased"]:
            detail = "its row was erased; the hash that the commit keeps of it is in the seal"
            yield _finding("erased", f"event {commit['first_seq'] + place}", detail)


def _finding(kind: str, what: str, detail: str) -> dict[str, str]:
    return {"kind": kind, "what": what, "detail": detail}


def _compared(seal: dict[str, Any], now: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    there = {commit["batch"]: commit for commit in now}
    for entry in seal["entries"]:
        commit = there.pop(entry["batch"], None)
        numbers = f"numbered {entry['first_seq']} to {entry['last_seq']}"
        if commit is None:
            detail = f"the commit {numbers}, with {len(entry['event'])} events, is missing"
            yield _finding("dropped", f"commit {entry['first_seq']}", detail)
            continue
        what = f"commit {commit['id']!r}"
        if (commit["first_seq"], commit["last_seq"]) != (entry["first_seq"], entry["last_seq"]):
            detail = f"it was {numbers}, and is now numbered {commit['first_seq']} to {commit['last_seq']}"
            yield _finding("reordered", what, detail)
        elif commit["committed_at_us"] != entry["committed_at_us"]:
            detail = f"it was committed at {entry['committed_at_us']}, not at {commit['committed_at_us']}"
            yield _finding("changed", what, detail)
        for kind in KINDS:
            yield from _rows_compared(kind, entry[kind], commit)
    for commit in there.values():
        detail = f"seal {seal['number']} does not have it: it was written later, among older ones"
        yield _finding("inserted", f"commit {commit['id']!r}", detail)


def _rows_compared(kind: str, before: Sequence[str], commit: dict[str, Any]) -> Iterator[dict[str, str]]:
    now = commit[kind]
    if list(before) == list(now):
        return
    if sorted(before) == sorted(now):
        what = f"the {kind}s of commit {commit['id']!r}"
        yield _finding("reordered", what, "they are in another order than they were sealed")
        return
    steps = SequenceMatcher(None, before, now, autojunk=False).get_opcodes()
    for _, start, stop, new_start, new_stop in (step for step in steps if step[0] != "equal"):
        both = min(stop - start, new_stop - new_start)
        for at in range(both):
            what = _row_name(kind, new_start + at, commit)
            yield _finding("changed", what, f"it is not the {kind} that was sealed")
        for at in range(start + both, stop):
            what = f"{kind} {at + 1} of {len(before)} of commit {commit['id']!r}"
            yield _finding("dropped", what, "it was sealed, and is missing")
        for at in range(new_start + both, new_stop):
            yield _finding("inserted", _row_name(kind, at, commit), "it was not sealed with its commit")


def _row_name(kind: str, at: int, commit: dict[str, Any]) -> str:
    names = commit["names"].get(kind) or ()
    if at < len(names) and names[at] is not None:
        return f"{kind} {names[at]!r}"
    return f"{kind} {at + 1} of commit {commit['id']!r}"


def commit_of(line: dict[str, Any]) -> dict[str, Any]:
    """Return a commit of the evidence for `differences`; the hashes of its events are computed from them."""
    events: list[str] = []
    names: list[str | None] = []
    erased: list[int] = []
    for each in line["events"]:
        if "erased" in each:
            events.append(each["erased"])
            names.append(None)
            erased.append(each["at"])
        else:
            salted = bytes.fromhex(each["salt"]) + each["event"].encode()
            events.append(sha256(b"\x00event\n" + salted).hexdigest())
            names.append(json.loads(each["event"])["id"])
    own = {name: line[name] for name in ("id", "first_seq", "last_seq", "committed_at_us", *KINDS[1:])}
    batch = sha256(b"\x00batch\n" + line["id"].encode()).hexdigest()
    known = {"event": names, "ref": line["refs"]}
    return {**own, "batch": batch, "event": events, "names": known, "erased": erased}


def check_evidence(
    lines: Iterable[str], seals: Iterable[dict[str, Any]], key: str | None
) -> Iterator[dict[str, str]]:
    """Yield what differs between evidence and published seals, and which of its events were erased."""
    rows = (json.loads(line) for line in lines if line.strip())
    head = next(rows)
    commits = [commit_of(line) for line in rows]
    before: dict[str, Any] | None = None
    for seal in sorted(seals, key=lambda each: each["number"]):
        name = f"seal {seal['number']}"
        if seal["namespace"] != head["namespace"]:
            raise Wrong(f"{name} is of namespace {seal['namespace']!r}, not {head['namespace']!r}")
        try:
            check_signature(seal, key)
            check_entries(seal)
        except (Wrong, KeyError, TypeError, ValueError) as error:
            yield _finding("seal", name, str(error))
            continue
        if (
            before is not None
            and seal["number"] == before["number"] + 1
            and (seal["previous"], seal["after_seq"]) != (seal_hash(before), before["to_seq"])
        ):
            yield _finding("seal", name, f"it does not continue seal {before['number']}")
        before = seal
        covered = (each for each in commits if seal["after_seq"] < each["last_seq"] <= seal["to_seq"])
        yield from differences(seal, list(covered))


def check_proof(proof: dict[str, Any], seal: dict[str, Any]) -> dict[str, Any]:
    """Check that an event is part of a sealed history; return the event."""
    leaf = sha256(b"\x00event\n" + bytes.fromhex(proof["salt"]) + proof["event"].encode()).digest()
    commit = proof["commit"]
    if climb(leaf, proof["path"]).hex() != commit["roots"]["event"]:
        raise Wrong("the event is not one of its commit")
    if climb(entry_hash(commit), proof["commit_path"]).hex() != seal["root"]:
        raise Wrong(f"the commit is not in seal {seal['number']}")
    event = json.loads(proof["event"])
    if not seal["after_seq"] < commit["last_seq"] <= seal["to_seq"]:
        raise Wrong(f"the commit has the numbers of another seal than {seal['number']}")
    return event


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Check a proof, or a whole history, against seals.")
    parser.add_argument("file", type=Path, help="what `treering audit prove` or `audit evidence` printed")
    parser.add_argument("--seal", type=Path, nargs="+", required=True, help="seals, as they were published")
    parser.add_argument("--key", type=Path, help="the public key that seals have to be signed with (PEM)")
    given = parser.parse_args(arguments)
    try:
        seals = [json.loads(each.read_text(encoding="utf-8")) for each in given.seal]
        key = given.key.read_text(encoding="utf-8") if given.key else None
        with given.file.open(encoding="utf-8") as file:
            if EVIDENCE in file.readline():
                file.seek(0)
                return _report(check_evidence(file, seals, key), len(seals))
        (seal,) = seals
        signer = check_signature(seal, key)
        check_entries(seal)
        event = check_proof(json.loads(given.file.read_text(encoding="utf-8")), seal)
    except (Wrong, KeyError, TypeError, ValueError) as error:
        sys.stdout.write(f"not proven: {error}\n")
        return 1
    sys.stdout.write(f"event {event['id']!r} is part of seal {seal['number']} ({signer})\n")
    return 0


def _report(found: Iterable[dict[str, str]], seals: int) -> int:
    erased = wrong = 0
    for each in found:
        if each["kind"] == "erased":
            erased += 1
        else:
            wrong += 1
            sys.stdout.write(f"{each['kind']}: {each['what']}: {each['detail']}\n")
    result = f"{wrong} differences" if wrong else "as it was sealed"
    sys.stdout.write(f"{result}; seals: {seals}, events erased: {erased}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
