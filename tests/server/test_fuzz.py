"""Damaged requests to a server, and damaged bytes for every decoder: refused in words, never a failure.

Valid requests of a remote store are recorded, and damaged by a seed (`tests.mutations`). A few thousand here;
in `make soak` for as long as ``TREERING_FUZZ_SECONDS`` says.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import msgspec
import pytest
from benchmarks.otlp_work import requests
from starlette.testclient import TestClient

import treering
from tests.core.test_packs import pack_of, unpacked
from tests.mutations import SEED, damaged_bytes, damaged_json, seeds, seeds_for
from treering.core import content, encoding, tree
from treering.core.content import Content
from treering.core.digests import AppendLeaf, CommitLeaves, decode_leaves, encode_leaves
from treering.core.query import Erasure, EventQuery, ListQuery, SearchQuery, SqlQuery, SumQuery
from treering.engines.remote import protocol
from treering.engines.remote.protocol import METHODS
from treering.errors import TreeringError
from treering.maintenance.audit import new_key, parse_seal
from treering.runs.otlp.decode import decode_request
from treering.server.app import create_app
from treering.server.settings import Settings
from treering.store import Store
from treering.testing import batches

SHARE = 0.25
"""Of the time of the long version, for the gateway and for the decoders each."""
SPACE = "default"


# The gateway


@cache
def calls() -> dict[str, list[Any]]:
    """Valid arguments for every method."""
    draft = batches.Draft(SPACE, id="fuzz")
    batches.full_load(draft)
    commit = protocol.CommitRequest((draft.batch(), batches.append(SPACE, "l", "x", "y", at=0)))
    engine = treering.open("memory:").engine
    for batch in commit.batches:
        engine.commit(batch)
    lease = engine.claim(SPACE, "lease", holder="me", seconds=60)
    names = protocol.NamesRequest(("full", "r", "0" * 64))
    return {
        "hello": [protocol.NoArguments()],
        "commit": [commit],
        "stage": [protocol.NoArguments(), batches.noise(9000), batches.words("some words " * 900)],
        "claim": [protocol.ClaimRequest(name="lease", holder="me", seconds=1.0)],
        "heartbeat": [protocol.LeaseRequest(lease=lease, seconds=1.0)],
        "release": [protocol.LeaseRequest(lease=lease)],
        "missing": [names],
        "refs": [names],
        "get": [protocol.AddressesRequest(("s:fuzz:0.0", f"o:{'0' * 64}"))],
        "lineage": [protocol.ListRequest(list="l")],
        "read_list": [protocol.ListRequest(list="l", start=0, stop=9)],
        "scan_refs": [protocol.PrefixRequest(prefix="", after=None, limit=9)],
        "list_refs": [protocol.ListRefsRequest(query=ListQuery(list="threads"), after=None, limit=9)],
        "scan_scopes": [protocol.PrefixRequest(prefix="/", after=None, limit=9)],
        "scan": [protocol.ScanRequest(query=EventQuery(thread="t1", order="time"), after="1.1", limit=9)],
        "wait": [protocol.WaitRequest(after_seq=0, seconds=0.0)],
        "sums": [SumQuery(grain="day", by=("day", "kind"))],
        "query": [SqlQuery(sql="SELECT run FROM runs WHERE agent = ?", params=("a",), max_rows=9)],
        "archive_info": [protocol.NoArguments()],
        "archive_before": [protocol.ArchiveRequest(before_us=1)],
        "search": [SearchQuery(collection="notes", text="oak elm")],
        "erase": [Erasure(scopes=("/thread/none",), secure=True)],
        "commit_digests": [protocol.DigestsRequest(after_seq=0, limit=9)],
        "export": [protocol.ExportRequest(after=None)],
        "load": list(engine.export(SPACE))[:1],
    }


def framed(messages: Iterable[bytes]) -> bytes:
    return b"".join(protocol.frame(protocol.MESSAGE, each) for each in messages)


def request_of(chance: random.Random, method: str) -> bytes:
    """A damaged request: damaged values, a damaged message, or damaged frames."""
    valid = calls()[method]
    how = chance.randrange(3)
    if how == 0:
        try:
            value = msgspec.json.decode(msgspec.json.encode(valid[0]))
            damaged = msgspec.msgpack.encode(damaged_json(chance, value))
        except (msgspec.MsgspecError, UnicodeEncodeError, ValueError, OverflowError):
            damaged = msgspec.msgpack.encode(valid[0])
        return framed([damaged, *map(msgspec.msgpack.encode, valid[1:])])
    encoded = [msgspec.msgpack.encode(each) for each in valid]
    if how == 1:
        at = chance.randrange(len(encoded))
        encoded[at] = damaged_bytes(chance, encoded[at])
        return framed(encoded)
    return damaged_bytes(chance, framed(encoded))


def client_of(store: Store) -> TestClient:
    app = create_app(store, Settings(hosts=("testserver",), calls_per_second=1e9))
    return TestClient(app, raise_server_exceptions=False)


class Gateway:
    """A server in this process, on a store of its own."""

    def __init__(self) -> None:
        self.store = treering.open("memory:")
        self.client = client_of(self.store)
        # An operator who loads rows gets what they say, also a ref to something that is not there.
        self.other = client_of(treering.open("memory:"))

    def send(self, seed: int) -> None:
        """Send a damaged request: it is answered in words, or accepted."""
        chance = random.Random(seed)
        method = chance.choice(sorted(calls()))
        where = self.other if method == "load" else self.client
        body = request_of(chance, method)
        headers = {protocol.HEADER: str(protocol.VERSION)}
        if chance.random() < 0.1:
            body, headers = gzip.compress(body), headers | {"content-encoding": "gzip"}
        answer = where.post(f"/gateway/{method}", content=body, headers=headers)
        # A store in memory has no place to archive to, and says so.
        is_refused = answer.status_code < 500 or (method == "archive_before" and answer.status_code == 501)
        assert is_refused, f"{SEED}={seed}: {method}: {answer.status_code} {answer.text[:300]}"
        assert b"the server failed" not in answer.content, f"{SEED}={seed}: {method}"

    def check(self) -> None:
        """Nothing that was accepted damaged the store."""
        assert self.store.verify().problems == ()
        self.store.state.set("still", "works")
        assert self.store.state.get("still") == "works"


def test_damaged_requests_of_remote_stores_are_refused_in_words():
    gateway = Gateway()
    for seed in seeds(1500):
        gateway.send(seed)
    gateway.check()


def test_every_method_of_the_gateway_is_fuzzed():
    slow_or_without_arguments = {"spaces", "stats", "sweep", "check", "reindex"}
    assert set(METHODS) == set(calls()) | slow_or_without_arguments


@pytest.mark.soak
@pytest.mark.timeout(3700)
def test_many_damaged_requests_are_refused_in_words():
    gateway = Gateway()
    for number, seed in enumerate(seeds_for(SHARE)):
        gateway.send(seed)
        if number % 5000 == 4999:
            gateway.check()
            gateway = Gateway()
    gateway.check()


# Decoders


@cache
def valid_bytes() -> dict[str, tuple[bytes, Callable[[bytes], Any]]]:
    """Valid input of each decoder, and the decoder."""
    body = content.pack_body([batches.words("one"), batches.noise(900)])
    leaves = CommitLeaves(events=2, erased={1: bytes(32)}, appends=(AppendLeaf(b"t" * 8, 0, 1, bytes(32)),))
    pack = pack_of(*(batches.noise(size) for size in (10, 5000, 70_000)))
    spans = requests(1)[0]
    values = {"a": [1, 2.5, None, "x"], "when": treering.open("memory:").clock.now_us(), "b": b"bytes"}
    encoded = encoding.encode(values)
    traces = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"00","spanId":"00","name":"n"}]}]}]}'
    return {
        "frame": (content.seal(body), lambda data: content.unseal(data, "here")),
        "body": (body, lambda data: content.unpack_body(data, "here")),
        "address": (b"s:batch:0.1", lambda data: content.parse_address(data.decode("utf-8", "replace"))),
        "leaves": (encode_leaves(leaves), lambda data: decode_leaves(data, "here")),
        "pack": (pack.data, unpacked),
        "value": (encoded.data, lambda data: encoding.decode(Content(encoded.kind, data))),
        "tree": (tree.encode_tree(tree.Tree()).data, lambda data: tree.decode_tree(Content("tree", data))),
        "spans": (spans, lambda data: decode_request(data, "traces", "protobuf")),
        "spans in JSON": (traces, lambda data: decode_request(data, "traces", "json")),
        "seal": (sealed(), parse_seal),
        "frames": (
            framed([body] * 3),
            lambda data: list(protocol.frames(protocol.reader(data), limit=1 << 20)),
        ),
    }


def sealed() -> bytes:
    store = treering.open("memory:")
    store.state.set("a", 1)
    seal = store.audit.seal(key=new_key()[0])
    assert seal is not None
    return seal.to_json()


def decode(seed: int) -> None:
    chance = random.Random(seed)
    name = chance.choice(sorted(valid_bytes()))
    valid, decoder = valid_bytes()[name]
    damaged = damaged_bytes(chance, valid)
    try:
        decoder(damaged)
    except (TreeringError, protocol.Truncated):
        return
    except Exception as error:
        raise AssertionError(f"{SEED}={seed}: the decoder of a {name} raised {error!r}") from error


def test_decoders_refuse_damaged_bytes_in_words():
    for seed in seeds(6000):
        decode(seed)


@pytest.mark.soak
@pytest.mark.timeout(3700)
def test_decoders_refuse_many_damaged_bytes_in_words():
    for seed in seeds_for(SHARE):
        decode(seed)
