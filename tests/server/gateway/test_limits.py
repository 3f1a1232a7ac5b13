"""The gateway rejects requests that are too large or invalid, and nothing breaks it."""

from __future__ import annotations

import http.client
import http.server
import threading

import msgspec
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from tests.server.gateway.requests import post
from tests.server.running import running

import treering
from treering import errors
from treering.core.batch import Batch, Draft, Event
from treering.core.content import Content
from treering.core.records import Ref, RefRow, Slice
from treering.engines.memory.engine import MemoryEngine
from treering.engines.remote import engine, protocol, transport
from treering.engines.remote.engine import open_remote, split_slice
from treering.engines.remote.protocol import METHODS
from treering.engines.remote.transport import error_from_document
from treering.errors import (
    InvalidInput,
    TooLarge,
    Unauthorized,
    Unsupported,
)
from treering.server.settings import Settings
from treering.testing import batches
from treering.testing.portrait import portrait


class TestLimits:
    @pytest.fixture
    def url(self, store):
        with running(store, Settings(max_body=100_000)) as url:
            yield url

    def test_a_large_request_is_rejected_before_it_is_read(self, url):
        status, answer = post(url, "stage", b"x" * 100_001)
        assert (status, type(error_from_document(answer))) == (413, TooLarge)

    @pytest.mark.parametrize("declares_its_size", [True, False])
    def test_a_decompression_bomb_is_rejected(self, url, declares_its_size):
        packed = zstd.compress(bytes(50_000_000))
        if not declares_its_size:
            compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.content_size_flag: 0})
            packed = compressor.compress(bytes(50_000_000)) + compressor.flush()
        bomb = protocol.HEAD.pack(protocol.MESSAGE | 0x80, len(packed)) + packed
        status, answer = post(url, "refs", bomb)
        assert (status, type(error_from_document(answer))) == (413, TooLarge)

    def test_many_small_decompression_bombs_are_rejected(self, url):
        small = protocol.frame(protocol.MESSAGE, msgspec.msgpack.encode(Content("bytes", bytes(60_000))))
        assert len(small) < 1000
        nothing = protocol.frame(protocol.MESSAGE, msgspec.msgpack.encode(protocol.NoArguments()))
        assert post(url, "stage", nothing + small)[0] == 200
        assert post(url, "stage", nothing + small * 2)[0] == 413

    def test_the_client_rejects_large_requests_before_sending(self, opened):
        with pytest.raises(TooLarge, match="100,000"):
            opened().stage("default", [batches.noise(200_000)])

    def test_large_objects_are_sent_before_their_batch(self, opened, monkeypatch):
        monkeypatch.setattr(engine, "GROUP_BYTES", 50_000)
        contents = [batches.noise(40_000, seed=number) for number in range(5)]
        draft = Draft("default")
        links = tuple(draft.put(content, scope="s") for content in contents)
        draft.set_ref("large", b"", scope="s", links=links)
        on = opened()
        receipt = on.commit(draft.batch())
        assert receipt.versions == {"large": 1}
        assert on.get("default", links) == contents
        assert on.commit(draft.batch()) == receipt
        again = Draft("default")
        again.set_ref(
            "submitted", b"", scope="s", links=tuple(again.put(each, scope="s") for each in contents)
        )
        assert on.submit(again.batch()).result(timeout=30).versions == {"submitted": 1}

    def test_compressible_content_counts_at_its_full_size(self, opened):
        contents = [Content("bytes", bytes([number]) * 30_000) for number in range(20)]
        on = opened()
        names = on.stage("default", contents)
        assert names == [content.name for content in contents]
        assert not on.missing("default", names)

    def test_a_copy_is_split_to_fit_into_requests(self, store, opened):
        draft = Draft("source")
        for number in range(20):
            content = Content("bytes", bytes([number]) * 30_000)
            draft.set_ref(f"r{number}", b"", scope="s", links=(draft.put(content, scope="s"),))
            draft.event(
                Event(id=f"{number}", kind="note", ts_us=1, scope="s", data=b'"' + b"x" * 20_000 + b'"')
            )
        source = MemoryEngine()
        source.commit(draft.batch())
        on = opened()
        slices = list(source.export("source"))
        assert len(slices) == 1
        on.load("default", slices[0])
        on.reindex("default")
        assert portrait(store.engine, "default") == portrait(source, "source")

    @given(st.integers(1, 3000), st.lists(st.integers(1, 900), max_size=12))
    def test_pieces_contain_everything_once_and_in_order(self, size, lengths):
        contents = tuple(Content("bytes", bytes(length)) for length in lengths)
        refs = tuple(
            RefRow(
                ref=Ref(
                    name=f"{length}",
                    scope="s",
                    version=1,
                    value=bytes(length),
                    links=(),
                    seq=1,
                    changed_at_us=1,
                ),
                deleted=False,
                salt=bytes(16),
            )
            for length in lengths
        )
        part = Slice(position="here", last_seq=5, committed_at_us=6, objects=contents, refs=refs)
        pieces = list(split_slice(part, size=size))
        assert tuple(row for piece in pieces for row in piece.objects) == contents
        assert tuple(row for piece in pieces for row in piece.refs) == refs
        assert {(piece.position, piece.last_seq, piece.committed_at_us) for piece in pieces} == {
            ("here", 5, 6)
        }
        for piece in pieces:
            rows = len(piece.objects) + len(piece.refs)
            assert rows == 1 or len(msgspec.msgpack.encode(piece)) <= size + 300

    def test_objects_swept_between_staging_and_commit_are_staged_again(self, store, opened, monkeypatch):
        monkeypatch.setattr(engine, "GROUP_BYTES", 10_000)
        on = opened()
        on.commit(batches.set_ref("default", "first"))
        sweeps = []
        stage = on._stage

        def stage_and_sweep(space, contents):
            names = stage(space, contents)
            if len(sweeps) < 2:
                sweeps.append(store.engine.sweep("default", grace_seconds=0).objects)
            return names

        monkeypatch.setattr(on, "_stage", stage_and_sweep)
        draft = Draft("default")
        draft.set_ref("large", b"", scope="s", links=(draft.put(batches.noise(20_000), scope="s"),))
        assert on.commit(draft.batch()).versions == {"large": 1}
        assert sweeps == [1, 1]


class TestInvalidRequests:
    @given(st.sampled_from(sorted(METHODS)), st.binary(max_size=60))
    def test_no_bytes_break_the_server(self, garbled, method, body):
        status, answer = post(garbled, method, body)
        assert 400 <= status < 500, answer
        assert isinstance(error_from_document(answer), InvalidInput | TooLarge)

    @given(
        st.sampled_from(sorted(METHODS)),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-5, 5)
            | st.floats()
            | st.text(max_size=3)
            | st.binary(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=6,
        ),
    )
    def test_no_message_breaks_the_server(self, garbled, method, message):
        body = protocol.frame(protocol.MESSAGE, msgspec.msgpack.encode(message))
        status, answer = post(garbled, method, body)
        assert status < 500, answer

    @pytest.fixture(scope="class", autouse=False)
    @classmethod
    def garbled(cls):
        with running(treering.open("memory:"), Settings(calls_per_second=1e6)) as url:
            yield url

    def test_an_object_must_match_its_name(self, store, opened):
        lie = Batch(id="lie", space="default", objects={"a" * 64: batches.noise(5000)})
        with pytest.raises(InvalidInput, match="does not match its name"):
            opened().commit(lie)
        assert store.engine.missing("default", ["a" * 64])

    @pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e12])
    def test_the_duration_of_a_lease_is_validated(self, opened, seconds):
        with pytest.raises(InvalidInput, match="seconds"):
            opened().claim("default", "job", holder="a", seconds=seconds)

    def test_unencodable_arguments_are_rejected(self, opened):
        on = opened()
        with pytest.raises(InvalidInput):
            on.scan_refs("default", "\ud800")
        with pytest.raises(InvalidInput):
            on.wait("default", 1 << 70, seconds=0)

    def test_another_protocol_version_is_an_error(self, url, monkeypatch):
        monkeypatch.setattr(transport, "VERSION", 99)
        with pytest.raises(Unsupported, match=r"version 1 .* version 99; upgrade"):
            open_remote(url)

    def test_a_request_without_the_protocol_header_is_rejected(self, url):
        status, answer = post(url, "spaces", b"", headers={})
        assert status == 422
        assert "treering.open" in str(error_from_document(answer))

    def test_another_server_is_not_mistaken_for_ours(self):
        class Other(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_response(self.server.status)
                self.send_header("location", "https://elsewhere.example")
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"hi")

            def log_message(self, *_):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
            thread = threading.Thread(target=other.serve_forever)
            thread.start()
            try:
                expected = {
                    200: Unsupported,
                    404: Unsupported,
                    308: InvalidInput,
                    401: Unauthorized,
                    500: errors.TreeringError,
                }
                for status, error in expected.items():
                    other.status = status
                    with pytest.raises(error) as caught:
                        open_remote(f"http://127.0.0.1:{other.server_port}")
                    assert type(caught.value) is error
            finally:
                other.shutdown()
                thread.join()
