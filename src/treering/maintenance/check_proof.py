"""Check a proof, or the signature and contents of a seal, without treering and without a store.

Copy this file to where it is needed: it uses Python's standard library, and ``cryptography`` if there is a
signature to check.

    python check_proof.py proof.json --seal seal.json [--key public.pem]

It exits with 0 if the event of the proof is part of the sealed history, with 1 and a reason if it is not.
"""

from __future__ import annotations

import argparse
import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

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
    hashes: list[bytes] = []
    for entry in entries:
        roots = {kind: root_of([bytes.fromhex(each) for each in entry[kind]]).hex() for kind in KINDS}
        counts = {kind: len(entry[kind]) for kind in KINDS}
        hashes.append(entry_hash(entry | {"roots": roots, "counts": counts}))
    if len(entries) != seal["commits"] or root_of(hashes).hex() != seal["root"]:
        raise Wrong(f"the commits listed in seal {seal['number']} are not those of its root")


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
    parser = argparse.ArgumentParser(description="Check that an event is part of a sealed history.")
    parser.add_argument("proof", type=Path, help="what `treering audit prove` printed")
    parser.add_argument("--seal", type=Path, required=True, help="the seal, as it was published")
    parser.add_argument("--key", type=Path, help="the public key that the seal has to be signed with (PEM)")
    given = parser.parse_args(arguments)
    try:
        seal = json.loads(given.seal.read_text())
        signer = check_signature(seal, given.key.read_text() if given.key else None)
        check_entries(seal)
        event = check_proof(json.loads(given.proof.read_text()), seal)
    except (Wrong, KeyError, TypeError, ValueError) as error:
        sys.stdout.write(f"not proven: {error}\n")
        return 1
    sys.stdout.write(f"event {event['id']!r} is part of seal {seal['number']} ({signer})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
