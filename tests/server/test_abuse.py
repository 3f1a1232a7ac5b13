"""Hostile requests to a real server process: each is refused, and others are answered meanwhile.

Work and memory are counted, not timed: bytes that zlib was given, the server's peak of memory, and whether
another client was answered while the request was running.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import re
import socket
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.testclient import TestClient

import treering
from tests.server.test_serving import Server
from treering.core.batch import Event
from treering.engines.remote import protocol
from treering.errors import InvalidInput, TooLarge
from treering.runs.otlp import decode
from treering.runs.otlp.decode import decode_request
from treering.server import http
from treering.server.app import create_app
from treering.server.auth import Keys
from treering.server.http import MAX_MEMBERS, MAX_VALUES, check_values, inflate
from treering.testing import batches

MB = 1_000_000
JSON = {"content-type": "application/json"}
GZIP = JSON | {"content-encoding": "gzip"}
PROTOBUF = {"content-type": "application/x-protobuf"}
GATEWAY = {protocol.HEADER: str(protocol.VERSION)}
PATIENCE = 60


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("abuse") / "store") as served:
        yield served


@pytest.fixture
def client(victim):
    with httpx.Client(base_url=victim.url, timeout=PATIENCE) as connected:
        yield connected


def peak_bytes(victim) -> int:
    """The most memory that the server has held so far."""
    status = Path(f"/proc/{victim.process.pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def raw(victim) -> socket.socket:
    """A connection without an HTTP client."""
    host, _, port = victim.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def is_closed(connection: socket.socket) -> bool:
    """Read until the server closes the connection."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


BOMB = gzip.compress(b"{}") * 100_000


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs", "/state/k", "/threads/t/checkpoints"])
def test_a_body_of_100_000_gzip_members_is_refused(client, path):
    answer = client.request("PUT" if "state" in path else "POST", path, content=BOMB, headers=GZIP)
    assert answer.status_code == 413
    assert f"more than {MAX_MEMBERS:,} gzip members" in answer.text


def test_decompressing_many_members_passes_each_byte_to_zlib_a_bounded_number_of_times(monkeypatch):
    given = 0

    class Counted:
        def __init__(self, **options):
            self._real = decompressobj(**options)

        def decompress(self, data, *more):
            nonlocal given
            given += len(data)
            return self._real.decompress(data, *more)

        def __getattr__(self, name):
            return getattr(self._real, name)

    decompressobj = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counted)
    member = gzip.compress(b"x" * 1000)
    assert inflate(member * MAX_MEMBERS, limit=2 * MB) == b"x" * 1000 * MAX_MEMBERS
    assert given < 1024 * http._PIECE_BYTES  # all of it once for each member would be 15 MB

    given = 0
    with pytest.raises(TooLarge):
        inflate(BOMB, limit=MB)
    assert given < (MAX_MEMBERS + 1) * http._PIECE_BYTES


def test_a_member_may_be_split_anywhere():
    data = bytes(range(256)) * 2000
    packed = b"".join(gzip.compress(data[at : at + 100_000], 0) for at in range(0, len(data), 100_000))
    assert len(packed) > 3 * http._PIECE_BYTES
    assert inflate(packed, limit=len(data)) == data
    with pytest.raises(TooLarge):
        inflate(packed, limit=len(data) - 1)


def test_no_body_is_decompressed_and_no_large_one_parsed_on_the_event_loop(monkeypatch):
    threads: list[str] = []

    def watched(name, real):
        def run(*given, **options):
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                threads.append(f"{name} in a worker")
            else:
                threads.append(f"{name} on the loop")
            return real(*given, **options)

        return run

    monkeypatch.setattr(http, "inflate", watched("inflate", http.inflate))
    monkeypatch.setattr(http, "_parse_json", watched("parse", http._parse_json))
    monkeypatch.setattr("treering.server.endpoints.readable_json", watched("encode", bytes))
    served = TestClient(create_app(treering.open("memory:")), base_url="http://127.0.0.1:8787")
    body = gzip.compress(msgspec.json.encode({"value": "x" * http.SMALL_BYTES}))
    served.put("/state/k", content=body, headers=GZIP)
    assert threads == ["inflate in a worker", "parse in a worker", "encode in a worker"]


EXPENSIVE = {
    "values": ("PUT", "/state/k", JSON, b'{"value":[' + b"{}," * 20 * MB + b"{}]}"),
    "spans in JSON": ("POST", "/v1/traces", JSON, b'{"resourceSpans":[' + b"{}," * 6 * MB + b"{}]}"),
    "spans in protobuf": ("POST", "/v1/traces", PROTOBUF, b"\x0a\x00" * 10 * MB),
    "scopes in protobuf": ("POST", "/v1/logs", PROTOBUF, b"\x0a\xfc\xff\xff\x04" + b"\x12\x00" * 5_242_878),
    "a large request": ("POST", "/v1/traces", PROTOBUF, b"\x0a\x00" * 30 * MB),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_a_request_that_is_too_costly_is_refused_and_others_are_answered_meanwhile(victim, client, name):
    method, path, headers, body = EXPENSIVE[name]
    answers: list[httpx.Response] = []
    sender = threading.Thread(
        target=lambda: answers.append(client.request(method, path, content=body, headers=headers))
    )
    with httpx.Client(base_url=victim.url, timeout=PATIENCE) as other:
        sender.start()
        answered = 0
        while sender.is_alive():
            assert other.get("/healthz").status_code == 200
            answered += 1
        sender.join()
    assert answers[0].status_code == 413, answers[0].text
    assert answered
    # The body, what was read of it into pieces, and the server itself: far from an object for each value.
    assert peak_bytes(victim) < 500 * MB


def test_values_are_counted_outside_of_text_only():
    text = '[,{\\"' * MAX_VALUES
    check_values(msgspec.json.encode({"value": [text, text]}))
    check_values(b"[" + b"1," * (MAX_VALUES - 1) + b"1]")
    with pytest.raises(TooLarge):
        check_values(b"[" + b"1," * MAX_VALUES + b"1]")
    with pytest.raises(TooLarge):
        check_values(msgspec.json.encode([text, *[[]] * MAX_VALUES]))


@pytest.mark.parametrize("shift", range(4))
def test_a_backslash_at_the_end_of_a_piece_still_escapes(monkeypatch, shift):
    monkeypatch.setattr(http, "_SCAN_BYTES", 4)
    monkeypatch.setattr(http, "MAX_VALUES", 4)
    text = "x" * shift + '\\",,,,,[[[' * 3
    check_values(msgspec.json.encode([text, 1]))
    with pytest.raises(TooLarge):
        check_values(msgspec.json.encode([text, 1, 2, 3, 4, 5]))


def nested(*levels, content):
    """A protobuf message inside of fields with these numbers, the outermost first."""
    for number in reversed(levels):
        content = _length_delimited(number, content)
    return content


def _length_delimited(number, content):
    size, digits = len(content), bytearray()
    while size > 0x7F:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *digits, size]) + content


PLACES = {
    "resources": (),
    "scopes": (1,),
    "spans": (1, 2),
    "attributes of a resource": (1, 1),
    "attributes of a span": (1, 2, 2),
    "values of an attribute": (1, 2, 2, 9, 2, 5),
    "attributes of an event": (1, 2, 2, 11),
    "attributes of a link": (1, 2, 2, 13),
}
LAST = {
    "scopes": 2,
    "spans": 2,
    "attributes of a span": 9,
    "attributes of an event": 3,
    "attributes of a link": 4,
}


@pytest.mark.parametrize("place", PLACES)
def test_the_messages_of_a_protobuf_request_are_limited_wherever_they_are(monkeypatch, place):
    monkeypatch.setattr(decode, "MAX_MESSAGES", 1000)
    many = bytes([LAST.get(place, 1) << 3 | 2, 0]) * 1200
    with pytest.raises(TooLarge, match="1,000 messages"):
        decode_request(nested(*PLACES[place], content=many), "traces", "protobuf")
    text = _length_delimited(9, nested(2, 1, content=b"\x0a\x00" * 1200))  # one attribute with text
    assert len(decode_request(nested(1, 2, 2, content=text), "traces", "protobuf").rejected) == 1


@pytest.mark.parametrize("body", [b"\x0b" * 3000, b"\x0a\xff\xff\x7f" * 1000, b"\xff" * 3000, b"\x0a" * 3001])
def test_protobuf_that_cannot_be_followed_is_refused(monkeypatch, body):
    monkeypatch.setattr(decode, "MAX_MESSAGES", 1000)
    with pytest.raises(InvalidInput, match="not OTLP in protobuf"):
        decode_request(body, "logs", "protobuf")


HOSTILE = {
    "invalid UTF-8": b'{"value":"\xff\xfe"}',
    "5,000 brackets": b'{"value":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "5,000 braces": b'{"value":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    "brackets without end": b"[" * 100_000,
    "half a surrogate": b'{"value":"\\ud800"}',
    "a number of 5,000 digits": b'{"value":' + b"9" * 5000 + b"}",
    "no finite number": b'{"value":1e999}',
    "nothing": b"\x00" * 10,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_body_is_the_fault_of_the_client(client, name):
    paths = client.get("/openapi.json").json()["paths"]
    tried = 0
    for path, operations in paths.items():
        for method in operations:
            if method == "get":
                continue
            headers = GATEWAY if path.startswith("/gateway") else JSON
            address = re.sub(r"\{\w+\}", "x", path)
            answer = client.request(method, address, content=HOSTILE[name], headers=headers)
            assert answer.status_code < 500, f"{method} {path}: {answer.text}"
            tried += 1
    assert tried > 50


@pytest.mark.parametrize("name", ["get", "refs", "missing"])
def test_a_remote_call_with_too_many_names_is_refused(client, name):
    (field,) = protocol.METHODS[name].args.__struct_fields__
    count = MB
    body = b"\x81" + msgspec.msgpack.encode(field) + b"\xdd" + count.to_bytes(4, "big") + b"\xa0" * count
    answer = client.post(f"/gateway/{name}", content=protocol.frame(1, body), headers=GATEWAY)
    assert answer.status_code == 422
    assert "length" in answer.text


def test_a_remote_call_with_millions_of_frames_is_refused(client):
    for method in ("stage", "commit"):
        body = protocol.frame(protocol.MESSAGE, b"\x80") * 2 * MB
        answer = client.post(f"/gateway/{method}", content=body, headers=GATEWAY)
        assert answer.status_code == 422
        assert "more than" in answer.text


def test_a_head_without_end_is_cut_off(victim, client):
    for start in (b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"GET /", b"", b"\r\n"):
        with closing(raw(victim)) as connection:
            sent = 0
            try:
                connection.sendall(start)
                while sent < 64 * MB:
                    connection.sendall(b"x-more: " + b"a" * 8000 + b"\r\n")
                    sent += 8000
            except ConnectionError:
                pass
            assert sent < 64 * MB
            assert is_closed(connection)
    assert client.get("/healthz").status_code == 200


def test_a_long_head_is_answered_with_its_status(victim):
    with closing(raw(victim)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: " + b"a" * 65_536)
        assert connection.recv(100).startswith(b"HTTP/1.1 431 Request Header Fields Too Large")


def test_trailers_without_end_are_cut_off(victim, client):
    with closing(raw(victim)) as connection:
        connection.sendall(
            b"POST /v1/traces HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        )
        sent = 0
        try:
            while sent < 64 * MB:
                connection.sendall(b"x-more: " + b"a" * 8000 + b"\r\n")
                sent += 8000
        except ConnectionError:
            pass
        assert sent < 64 * MB
    assert client.get("/healthz").status_code == 200


def test_half_open_requests_are_closed_after_a_time_and_hinder_nobody(victim, client):
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(raw(victim))) for _ in range(300)]
        for number, connection in enumerate(connections):
            connection.sendall([b"", b"G", b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-a: "][number % 3])
        assert client.get("/healthz").status_code == 200
        assert all(is_closed(connection) for connection in connections)


def test_pipelined_requests_and_long_bodies_are_still_served(victim):
    body = b'{"value":"' + b"x" * 500_000 + b'"}'
    one = (
        b"PUT /state/pipelined HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )
    with closing(raw(victim)) as connection:
        connection.sendall((one + body) * 3)
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 3 or not received.endswith(b"}"):
            piece = connection.recv(65536)
            assert piece, received[-500:]
            received += piece


HOLE = 2 << 30


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """A server of its own with a snapshot of a file that is 2 GiB of nothing, and a line."""
    folder = tmp_path_factory.mktemp("sparse")
    (folder / "work").mkdir()
    with (folder / "work" / "hole.bin").open("wb") as file:
        file.truncate(HOLE)
        file.seek(HOLE)
        file.write(b"the end")
    with treering.open(folder / "store") as store:
        snapshot = store.workspace.snapshot(folder / "work")
    with Server(folder / "store") as served:
        yield served, snapshot


def test_a_file_of_any_size_is_sent_without_being_held(sparse):
    served, snapshot = sparse
    received, end = 0, b""
    with (
        httpx.Client(base_url=served.url, timeout=PATIENCE) as connected,
        connected.stream("GET", f"/snapshots/{snapshot}/cat?path=hole.bin") as answer,
    ):
        assert answer.headers["content-length"] == str(HOLE + 7)
        for piece in answer.iter_raw(1 << 20):
            received += len(piece)
            end = (end + piece)[-7:]
    assert (received, end) == (HOLE + 7, b"the end")
    assert peak_bytes(served) < 300 * MB


@pytest.mark.parametrize(
    "wanted, status, expected",
    [
        ("bytes=-7", 206, b"the end"),
        (f"bytes={HOLE}-", 206, b"the end"),
        (f"bytes={HOLE - 2}-{HOLE + 2}", 206, b"\0\0the"),
        (f"bytes={HOLE + 4}-{HOLE + 999}", 206, b"end"),
        (f"bytes={HOLE + 7}-", 416, None),
        ("bytes=-0", 416, None),
    ],
)
def test_a_part_of_a_file_is_sent_by_its_range(sparse, wanted, status, expected):
    served, snapshot = sparse
    answer = httpx.get(
        f"{served.url}/snapshots/{snapshot}/cat",
        params={"path": "hole.bin"},
        headers={"range": wanted},
        timeout=PATIENCE,
    )
    assert answer.status_code == status
    if expected is not None:
        assert answer.content == expected
        first, _, last = answer.headers["content-range"].removesuffix(f"/{HOLE + 7}").partition("-")
        assert int(last) - int(first.removeprefix("bytes ")) + 1 == len(expected)
    else:
        assert answer.headers["content-range"] == f"bytes */{HOLE + 7}"


def test_the_head_of_a_file_is_told_without_reading_it(sparse):
    served, snapshot = sparse
    address = f"{served.url}/snapshots/{snapshot}/cat?path=hole.bin"
    answer = httpx.head(address, timeout=PATIENCE)
    assert (answer.status_code, answer.headers["content-length"]) == (200, str(HOLE + 7))
    ranges = {"range": "bytes=-7", "if-range": answer.headers["etag"]}
    assert httpx.get(address, headers=ranges, timeout=PATIENCE).content == b"the end"


def test_a_remote_store_reads_a_large_file_and_the_server_holds_a_piece_of_it(sparse):
    served, snapshot = sparse
    with treering.open(served.url) as store:
        size = sum(map(len, store.workspace.stream(snapshot, "hole.bin")))
        assert size == HOLE + 7
    assert peak_bytes(served) < 300 * MB


def test_many_contents_are_read_for_a_client_as_it_takes_them(sparse):
    """A request for the same megabytes 5,000 times is answered without holding them."""
    served, _ = sparse
    with treering.open(served.url) as store:
        (name,) = store.engine.stage("default", [batches.noise(1 << 20)])
    body = msgspec.msgpack.encode(protocol.AddressesRequest((f"o:{name}",) * 5000))
    received = 0
    with httpx.stream(
        "POST",
        f"{served.url}/gateway/get",
        content=protocol.frame(protocol.MESSAGE, body),
        headers=GATEWAY,
        timeout=PATIENCE,
    ) as answer:
        for piece in answer.iter_raw():
            received += len(piece)
            if received > 100 << 20:
                break
    assert received > 100 << 20
    assert peak_bytes(served) < 500 * MB


def message(field: str, first: bytes, value: bytes, count: int) -> bytes:
    """A compressed commit of one batch in which a field holds the same value very often."""
    start = b"\x81" + msgspec.msgpack.encode("batches")
    if field != "batches":
        own = map(msgspec.msgpack.encode, ("id", "a", "space", "b", field))
        start += b"\x91\x83" + b"".join(own)
    return protocol.frame(protocol.MESSAGE, start + first + count.to_bytes(4, "big") + value * count)


EVENT = msgspec.msgpack.encode({"id": "a", "kind": "k", "ts_us": 1, "scope": "s"})
BATCH = msgspec.msgpack.encode({"id": "a", "space": "b"})
FRAMES = {
    "millions of batches": message("batches", b"\xdd", BATCH, 4 * MB),
    "thousands of batches": message("batches", b"\xdd", BATCH, protocol.MAX_BATCHES + 1),
    "millions of events": message("events", b"\xdd", EVENT, MB),
    "values that nobody knows": message("unknown", b"\xdd", b"\xc0", 50 * MB),
    "a length that nothing follows": message("events", b"\xdd", b"", 4_000_000_000),
    "a map that nothing follows": message("objects", b"\xdf", b"", 4_000_000_000),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_small_frame_cannot_make_the_server_work_for_long(victim, client, name):
    answers: list[httpx.Response] = []
    sender = threading.Thread(
        target=lambda: answers.append(client.post("/gateway/commit", content=FRAMES[name], headers=GATEWAY))
    )
    assert len(FRAMES[name]) < 20_000
    with httpx.Client(base_url=victim.url, timeout=PATIENCE) as other:
        sender.start()
        while sender.is_alive():
            assert other.get("/healthz").status_code == 200
        sender.join()
    assert answers[0].status_code in {413, 422}, answers[0].text
    assert peak_bytes(victim) < 500 * MB


@pytest.mark.parametrize(
    "data", [None, True, 5, -5, 300, 1 << 40, 1.5, "x", "x" * 40, "x" * 70_000, b"", b"x" * 300]
)
def test_values_of_messages_are_counted_without_decoding_them(monkeypatch, data):
    ext = msgspec.msgpack.Ext(5, b"x" * 300)
    given = msgspec.msgpack.encode({"a": [data] * 20, "b": {"c": data, "d": ext}})
    for most, is_fine in ((29, True), (28, False)):
        monkeypatch.setattr(protocol, "MAX_VALUES", most)
        if is_fine:
            protocol.check_values(given)
        else:
            with pytest.raises(TooLarge):
                protocol.check_values(given)


@pytest.mark.parametrize("how", ["gzip", "chunked", "gateway"])
def test_many_large_bodies_take_turns(tmp_path, how):
    """Each of 20 requests may take tens of megabytes, and all of them together not much more."""
    body = b'{"value":"' + b"x" * 10 * MB  # without an end, so that nothing is stored
    packed = gzip.compress(body, 1)
    framed = protocol.frame(protocol.MESSAGE, msgspec.msgpack.encode({"batches": [], "x": body}))

    def send(number: int) -> int:
        with httpx.Client(base_url=served.url, timeout=PATIENCE) as one:
            if how == "gzip":
                return one.put(f"/state/{number}", content=packed, headers=GZIP).status_code
            if how == "gateway":
                return one.post("/gateway/commit", content=framed, headers=GATEWAY).status_code
            pieces = (body[start : start + MB] for start in range(0, len(body), MB))
            return one.put(f"/state/{number}", content=pieces, headers=JSON).status_code

    with Server(tmp_path / "store") as served:
        before = peak_bytes(served)
        with ThreadPoolExecutor(20) as pool:
            assert set(pool.map(send, range(20))) == {200 if how == "gateway" else 422}
        assert peak_bytes(served) - before < 250 * MB


@pytest.mark.parametrize("path", ["/state/k", "/v1/traces", "/gateway/commit"])
def test_what_is_refused_is_not_kept(tmp_path, path):
    """An error refers to the body that it is about: no body waits for the next garbage collection."""
    headers = GZIP | GATEWAY
    body = gzip.compress(b'{"value":"' + b"x" * 10 * MB, 1)
    with Server(tmp_path / "store") as served, httpx.Client(base_url=served.url, timeout=PATIENCE) as one:
        before = peak_bytes(served)
        for _ in range(20):
            method = "PUT" if path.startswith("/state") else "POST"
            assert one.request(method, path, content=body, headers=headers).status_code in {400, 413, 422}
        assert peak_bytes(served) - before < 120 * MB


# Streams


def upgrade(victim, path: str) -> socket.socket:
    """A connection of a client that listens and takes little at a time; to a WebSocket for that path."""
    host = victim.url.removeprefix("http://")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
    name, _, port = host.partition(":")
    connection.connect((name, int(port)))
    head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n"
    if path.startswith("/ws"):
        head += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        head += f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
    connection.sendall(f"{head}\r\n".encode())
    assert connection.recv(12) in {b"HTTP/1.1 200", b"HTTP/1.1 101"}
    return connection


def test_readers_that_take_nothing_hold_little_and_delay_nobody(tmp_path):
    """Each asks for 40 MB. What is read for one of them is bounded, and so is for how many at once."""
    with treering.open(tmp_path / "store", durability="fast") as store:
        data = msgspec.json.encode("x" * 60_000)
        for number in range(14):
            draft = store.draft()
            for each in range(50):
                draft.event(
                    Event(id=f"{number}-{each}", kind="note", ts_us=10**15, scope="/run/r", data=data)
                )
            store.commit(draft)
    with Server(tmp_path / "store") as served, ExitStack() as stack:
        before = peak_bytes(served)
        for path in ("/live?after=0", "/ws?after=0") * 15:
            stack.enter_context(upgrade(served, path))
        with (
            httpx.Client(base_url=served.url, timeout=PATIENCE) as one,
            one.stream("GET", "/live?after=0") as all_,
        ):
            lines = (line for line in all_.iter_lines() if line.startswith("id: "))
            assert next(line for line in lines if int(line[4:]) >= 700), "another reader gets everything"
            assert one.get("/readyz").status_code == 200
        assert peak_bytes(served) - before < 300 * MB


FLOODS = {
    "pings": b"\x89\x80" + bytes(4),
    "messages": b"\x81\x80" + bytes(4),
    "pieces of a message": b"\x00\x80" + bytes(4),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_client_of_the_websocket_that_sends_is_closed_with_a_reason(victim, client, name):
    """It only listens. A frame has six bytes, and parsing the many of one read would stop the event loop."""
    first = b"\x01\x80" + bytes(4) if name.startswith("pieces") else b""
    with closing(upgrade(victim, "/ws")) as connection:
        received = connection.recv(65536)
        connection.sendall(first + FLOODS[name] * 100)  # as many as pings of two minutes
        assert client.get("/healthz").status_code == 200
        with suppress(ConnectionError):
            connection.sendall(FLOODS[name] * 10_000)
            while piece := connection.recv(65536):
                received += piece
    assert received.count(b"\x8a\x00") <= 2 * 4096 // 6, "no more pings were answered than a client may send"


def test_a_client_that_floods_slowly_is_told_why(victim):
    with closing(upgrade(victim, "/ws")) as connection:
        received = b""
        for _ in range(8):
            connection.sendall(FLOODS["pings"] * 100)
            received = connection.recv(65536)
            if b"only listen" in received:
                break
        assert received.endswith(b"only listen; this stream takes no messages")
        assert is_closed(connection)


# Keys


def test_no_key_is_logged_or_sent_back(tmp_path):
    """Wherever a client puts it: where it belongs, in the address, in a body, or cut in the wrong place."""
    own = "a-key-of-the-settings-4711-4711-4711"
    with treering.open(tmp_path / "store") as store:
        made = Keys(store.engine, clock=store.clock).create(scope="write", name="ci").token
    with Server(tmp_path / "store", TREERING_API_KEY=own) as served:
        said = ""
        with httpx.Client(base_url=served.url, timeout=PATIENCE) as one:
            for key in (own, made):
                for headers in (
                    {"authorization": f"Bearer {key}"},
                    {"authorization": f"Bearer {key}x"},
                    {"authorization": key},
                    {"authorization": f"Basic {key}"},
                    {"x-api-key": f"{key}y"},
                    {},
                ):
                    for method, path, content in (
                        ("GET", "/runs", None),
                        ("GET", f"/runs?api_key={key}", None),
                        ("GET", f"/live?api_key={key}&after=x", None),
                        ("PUT", "/state/k", b'{"value":'),
                        ("POST", "/v1/traces", b"\xff\xff"),
                        ("POST", "/gateway/commit", b"\xff"),
                        ("POST", "/nothing", b"{}"),
                    ):
                        answer = one.request(method, path, content=content, headers=headers | JSON)
                        assert answer.status_code >= 400 or path == "/runs"
                        said += str(answer.headers) + answer.text
            for path in (f"/ws?api_key={made}x", f"/ws?api_key={made}&after=x"):
                with closing(raw(served)) as connection, suppress(ConnectionError):
                    connection.sendall(
                        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                        f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n".encode()
                    )
                    said += connection.recv(65536).decode()
            with closing(raw(served)) as connection:
                connection.sendall(f"GET /runs HTTP/9 {own}\r\nauthorization {made}\r\n\r\n".encode())
                said += connection.recv(65536).decode()
        served.process.terminate()
        said += served.process.stderr.read()
    for key in (own, made, made.rpartition("_")[2]):
        assert key not in said
