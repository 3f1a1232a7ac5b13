"""The gateway keeps projects apart, refuses what it must, and loses nothing on a bad line."""

from __future__ import annotations

import http.client
import http.server
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import msgspec
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from tests.server.relay import relayed
from tests.server.running import running

import treering
from treering import errors
from treering.core.batch import Batch, Event
from treering.core.clock import SystemClock
from treering.core.content import Content
from treering.core.draft import Draft
from treering.core.dump import RefRow, Slice
from treering.core.query import Erasure, EventQuery, SearchQuery, SumQuery
from treering.core.records import Lease, Ref
from treering.engines.memory import MemoryEngine
from treering.engines.remote import connection, engine, protocol, wire
from treering.engines.remote.engine import open_remote
from treering.engines.remote.failures import error_in, error_of
from treering.engines.remote.pieces import cut
from treering.engines.remote.place import place_of
from treering.engines.remote.protocol import METHODS
from treering.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    MissingObjects,
    NotFound,
    TooLarge,
    Unauthorized,
    Unreachable,
    Unsupported,
)
from treering.server import waits
from treering.server.access import KEYS_SPACE, SCOPES, Keys
from treering.server.gateway import failure_of, namespaces_of, space_of
from treering.server.problems import problem_of
from treering.server.routes import gateway as routes
from treering.server.settings import Settings
from treering.testing import batches
from treering.testing.portrait import portrait

CANARY = "canary-of-the-neighbour"
LEASE = Lease(space="b", name="job", holder="b", token=1, expires_at_us=2**52)
CALLS = {
    "hello": lambda on, _: on._ask_hello(),
    "commit": lambda on, space: on.commit(batches.set_ref(space, "mine")),
    "stage": lambda on, space: on.stage(space, [batches.noise(5000, seed=1)]),
    "claim": lambda on, space: on.claim(space, "job", holder="a", seconds=60),
    "heartbeat": lambda on, space: on.heartbeat(msgspec.structs.replace(LEASE, space=space), seconds=60),
    "release": lambda on, space: on.release(msgspec.structs.replace(LEASE, space=space)),
    "missing": lambda on, space: on.missing(space, [batches.noise(5000, seed=7).name]),
    "get": lambda on, space: on.get(space, [f"s:{CANARY}:0.0"]),
    "lineage": lambda on, space: on.lineage(space, CANARY),
    "read_list": lambda on, space: on.read_list(space, CANARY, 0, 10),
    "refs": lambda on, space: on.refs(space, [CANARY]),
    "scan_refs": lambda on, space: on.scan_refs(space, ""),
    "scan": lambda on, space: on.scan(space, EventQuery()),
    "wait": lambda on, space: on.wait(space, 0, seconds=0),
    "sums": lambda on, space: on.sums(space, SumQuery(grain="day", by=("agent",))),
    "search": lambda on, space: on.search(space, SearchQuery(collection="notes", text=CANARY)),
    "scan_scopes": lambda on, space: on.scan_scopes(space, ""),
    "spaces": lambda on, _: on.spaces(),
    "stats": lambda on, space: on.stats(space),
    "erase": lambda on, space: on.erase(space, Erasure(scopes=(f"/{CANARY}/x",), refs=(CANARY,))),
    "sweep": lambda on, space: on.sweep(space, grace_seconds=0),
    "check": lambda on, space: list(on.check(space)),
    "reindex": lambda on, space: on.reindex(space),
    "export": lambda on, space: list(on.export(space)),
    "load": lambda on, space: on.load(space, Slice(position="x", last_seq=9, committed_at_us=9)),
}


@pytest.fixture
def store():
    return treering.open("memory:")


@pytest.fixture
def url(store):
    with running(store) as url:
        yield url


@pytest.fixture
def opened(url):
    """Opens remote engines, and closes them."""
    made = []

    def open_one(api_key=None, where=None):
        made.append(open_remote(where or url, api_key=api_key))
        return made[-1]

    yield open_one
    for each in made:
        each.close()


@pytest.fixture
def keys(store):
    made = Keys(store.engine, clock=SystemClock())
    return lambda project, scope="admin": made.create(project=project, scope=scope).token


class TestTenants:
    def test_every_method_is_called_here(self):
        assert CALLS.keys() == METHODS.keys()

    @pytest.mark.parametrize("method", CALLS)
    def test_no_method_reaches_into_another_project(self, store, opened, keys, method):
        """Whatever a namespace is called, it is as empty as any other, and the neighbour notices nothing."""
        theirs = ("b", space_of("b", "x"))
        for space in theirs:
            _plant(store.engine, space)
        mine = opened(keys("a"))
        before = [_state(store.engine, space) for space in (*theirs, KEYS_SPACE)]
        usual = _told(method, mine, "fresh")
        for namespace in ("default", "b", "side.1.b.x", "side.1.a.b", KEYS_SPACE, "x"):
            assert _told(method, mine, namespace) == usual
            assert [_state(store.engine, space) for space in (*theirs, KEYS_SPACE)] == before

    def test_a_forged_space_inside_of_a_record_means_nothing(self, store, url, keys):
        """As a client that does not keep to the rules would send it."""
        token = keys("a")
        held = store.engine.claim("b", "job", holder="b", seconds=60)
        forged = msgspec.msgpack.encode(protocol.Commits((batches.set_ref("b", "forged"),)))
        status, answer = _post(url, "commit", wire.frame(wire.MESSAGE, forged), token=token)
        assert status == 200, answer
        assert store.engine.refs("a", ["forged"])
        assert not store.engine.refs("b", ["forged"])
        release = msgspec.msgpack.encode(protocol.Held(lease=held))
        assert _post(url, "release", wire.frame(wire.MESSAGE, release), token=token)[0] == 200
        assert store.engine.claim("b", "job", holder="a", seconds=1) is None

    def test_the_namespaces_of_a_project_are_its_own(self, opened, keys):
        mine, theirs = opened(keys("a")), opened(keys("b"))
        for each in (mine, theirs):
            for namespace in ("default", "x", "side.1.b.x"):
                each.commit(batches.set_ref(namespace, "r"))
        theirs.commit(batches.set_ref("y", "r"))
        assert mine.spaces() == ["default", "side.1.b.x", "x"]
        assert theirs.spaces() == ["default", "side.1.b.x", "x", "y"]
        assert (mine.project, theirs.project) == ("a", "b")

    @given(st.lists(st.tuples(*[st.from_regex(r"[a-c0-9.-]{1,6}", fullmatch=True)] * 2), min_size=2))
    def test_different_pairs_have_different_spaces(self, pairs):
        found = {}
        for project, namespace in pairs:
            try:
                space = space_of(project, namespace)
            except (InvalidInput, Forbidden):
                continue
            assert found.setdefault(space, (project, namespace)) == (project, namespace)
            assert namespaces_of(project, [space]) == [namespace]

    def test_the_name_of_the_project_is_no_namespace_of_it(self, opened, keys):
        mine = opened(keys("acme"))
        with pytest.raises(InvalidInput, match="leave the namespace out"):
            mine.refs("acme", ["r"])

    def test_a_project_that_looks_like_a_side_space_has_no_gateway(self, opened, keys):
        mine = opened(keys("a"))
        mine.commit(batches.set_ref("x", "r"))
        with pytest.raises(Forbidden, match="rename the project"):
            opened(keys(space_of("a", "x")))


class TestKeys:
    def test_without_a_key_nobody_gets_in(self, url, keys):
        keys("a")
        with pytest.raises(Unauthorized, match="key"):
            open_remote(url)
        with pytest.raises(Unauthorized):
            open_remote(url, api_key="tr_wrong_key")

    @pytest.mark.parametrize("scope", SCOPES)
    def test_a_scope_opens_its_methods_and_no_others(self, store, opened, keys, scope):
        mine = opened(keys("a", scope))
        assert mine.scope == scope
        _plant(store.engine, "a")
        for name, call in CALLS.items():
            allowed = SCOPES.index(METHODS[name].scope) <= SCOPES.index(scope)
            try:
                call(mine, "default")
            except Forbidden:
                assert not allowed, name
            else:
                assert allowed, name

    def test_a_key_with_a_line_break_is_not_sent(self, url):
        with pytest.raises(InvalidInput, match="line break"):
            open_remote(url, api_key="tr_x\r\nevil: yes")

    @pytest.mark.parametrize(
        "place",
        [
            "https://:secret@host",
            "https://host?api_key=secret",
            "https://host#secret",
            "https://",
            "https://host:port",
        ],
    )
    def test_a_url_holds_no_secret(self, place):
        with pytest.raises(InvalidInput) as caught:
            open_remote(place)
        assert "secret" not in str(caught.value)


class TestLimits:
    @pytest.fixture
    def url(self, store):
        with running(store, Settings(max_body=100_000)) as url:
            yield url

    def test_a_large_request_is_refused_before_it_is_read(self, url):
        status, answer = _post(url, "stage", b"x" * 100_001)
        assert (status, type(error_in(answer))) == (413, TooLarge)

    @pytest.mark.parametrize("tells_its_size", [True, False])
    def test_a_bomb_does_not_go_off(self, url, tells_its_size):
        packed = zstd.compress(bytes(50_000_000))
        if not tells_its_size:
            compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.content_size_flag: 0})
            packed = compressor.compress(bytes(50_000_000)) + compressor.flush()
        bomb = wire.HEAD.pack(wire.MESSAGE | 0x80, len(packed)) + packed
        status, answer = _post(url, "refs", bomb)
        assert (status, type(error_in(answer))) == (413, TooLarge)

    def test_many_small_bombs_do_not_go_off(self, url):
        small = wire.frame(wire.MESSAGE, msgspec.msgpack.encode(Content("bytes", bytes(60_000))))
        assert len(small) < 1000
        nothing = wire.frame(wire.MESSAGE, msgspec.msgpack.encode(protocol.Nothing()))
        assert _post(url, "stage", nothing + small)[0] == 200
        assert _post(url, "stage", nothing + small * 2)[0] == 413

    def test_the_client_says_it_before_it_sends(self, opened):
        with pytest.raises(TooLarge, match="100,000"):
            opened().stage("default", [batches.noise(200_000)])

    def test_large_objects_travel_ahead_of_their_batch(self, opened, monkeypatch):
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

    def test_what_shrinks_on_the_way_is_counted_as_it_is(self, opened):
        contents = [Content("bytes", bytes([number]) * 30_000) for number in range(20)]
        on = opened()
        names = on.stage("default", contents)
        assert names == [content.name for content in contents]
        assert not on.missing("default", names)

    def test_a_copy_is_cut_to_what_a_request_has_room_for(self, store, opened):
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
    def test_pieces_hold_everything_once_and_in_order(self, size, lengths):
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
            )
            for length in lengths
        )
        part = Slice(position="here", last_seq=5, committed_at_us=6, objects=contents, refs=refs)
        pieces = list(cut(part, size=size))
        assert tuple(row for piece in pieces for row in piece.objects) == contents
        assert tuple(row for piece in pieces for row in piece.refs) == refs
        assert {(piece.position, piece.last_seq, piece.committed_at_us) for piece in pieces} == {
            ("here", 5, 6)
        }
        for piece in pieces:
            rows = len(piece.objects) + len(piece.refs)
            assert rows == 1 or len(msgspec.msgpack.encode(piece)) <= size + 300

    def test_a_sweep_between_staging_and_commit_is_made_good(self, store, opened, monkeypatch):
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


class TestRefusals:
    @given(st.sampled_from(sorted(METHODS)), st.binary(max_size=60))
    def test_no_bytes_break_the_server(self, garbled, method, body):
        status, answer = _post(garbled, method, body)
        assert 400 <= status < 500, answer
        assert isinstance(error_in(answer), InvalidInput | TooLarge)

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
        body = wire.frame(wire.MESSAGE, msgspec.msgpack.encode(message))
        status, answer = _post(garbled, method, body)
        assert status < 500, answer

    @pytest.fixture(scope="class", autouse=False)
    @classmethod
    def garbled(cls):
        with running(treering.open("memory:"), Settings(calls_per_second=1e6)) as url:
            yield url

    def test_an_object_must_hold_what_its_name_says(self, store, opened):
        lie = Batch(id="lie", space="default", objects={"a" * 64: batches.noise(5000)})
        with pytest.raises(InvalidInput, match="other bytes"):
            opened().commit(lie)
        assert store.engine.missing("default", ["a" * 64])

    @pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e12])
    def test_a_lease_lasts_a_sensible_time(self, opened, seconds):
        with pytest.raises(InvalidInput, match="seconds"):
            opened().claim("default", "job", holder="a", seconds=seconds)

    def test_what_cannot_be_sent_is_said(self, opened):
        on = opened()
        with pytest.raises(InvalidInput):
            on.scan_refs("default", "\ud800")
        with pytest.raises(InvalidInput):
            on.wait("default", 1 << 70, seconds=0)

    def test_another_version_of_the_protocol_is_named(self, url, monkeypatch):
        monkeypatch.setattr(connection, "VERSION", 99)
        with pytest.raises(Unsupported, match=r"version 1 .* version 99; upgrade"):
            open_remote(url)

    def test_a_request_that_is_not_of_a_client_is_told_so(self, url):
        status, answer = _post(url, "spaces", b"", headers={})
        assert status == 422
        assert "treering.open" in str(error_in(answer))

    def test_some_other_server_is_not_taken_for_ours(self):
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


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [
            *(
                kind("what went wrong")
                for kind in vars(errors).values()
                if isinstance(kind, type)
                and issubclass(kind, errors.TreeringError)
                and kind not in {MissingObjects, errors.BudgetExceeded, errors.MissingExtra, errors.TooMany}
            ),
            MissingObjects(("a" * 64, "b" * 64)),
            errors.BudgetExceeded("stop", budget="run", limit=5, count=6),
            errors.TooMany("slow down", retry_after=2.5),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_every_error_arrives_as_it_was(self, error):
        for arrived in (error_of(failure_of(error)), error_in(msgspec.json.encode(problem_of(error)))):
            assert type(arrived) is type(error)
            assert str(arrived) == str(error)
            assert vars(arrived) == vars(error)

    def test_an_error_of_nobody_is_an_error_all_the_same(self):
        assert type(error_of(protocol.Failure(kind="os", detail="x"))) is errors.TreeringError
        assert type(error_of(protocol.Failure(kind="MissingObjects", detail="x"))) is errors.TreeringError
        assert type(error_in(b"<html>")) is errors.TreeringError

    def test_a_class_that_only_the_server_knows_arrives_as_the_nearest(self):
        class Local(NotFound):
            pass

        assert type(error_of(failure_of(Local("x")))) is NotFound


class TestBadLines:
    def test_a_lost_answer_is_asked_for_again(self, url, opened):
        with relayed(url) as relay:
            on = opened(where=relay.url)
            relay.lose_answers = 2
            draft = Draft("default")
            draft.event(Event(id="once", kind="note", ts_us=1, scope="s"))
            receipt = on.commit(draft.batch())
            assert relay.lost == 2
            assert (receipt.first_seq, receipt.new_events) == (1, 1)
            relay.lose_answers = 1
            assert len(on.scan("default", EventQuery()).records) == 1
            assert relay.lost == 3

    def test_a_refusal_in_the_middle_of_a_request_is_heard(self, opened):
        """As something in front of a server may send it, closing the connection on the rest."""
        problem = msgspec.json.encode(problem_of(TooLarge("not that much")))
        answer = (
            "HTTP/1.1 413 Too Large\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(problem)}\r\nconnection: close\r\n\r\n"
        ).encode() + problem

        def refuse():
            line, _ = listening.accept()
            with line:
                line.recv(1000)
                line.sendall(answer)

        on = opened()
        with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
            refused = pool.submit(refuse)
            on._connections._place = place_of(
                f"http://127.0.0.1:{listening.getsockname()[1]}", with_key=False
            )
            on._connections.abandon()
            with pytest.raises(TooLarge, match="not that much"):
                on.stage("default", [batches.noise(12_000_000)])
            refused.result(timeout=60)

    def test_what_may_not_be_repeated_is_not(self, store, url, opened):
        with relayed(url) as relay:
            on = opened(where=relay.url)
            on.commit(batches.events("default", batches.event(scope="gone")))
            relay.lose_answers = 1
            with pytest.raises(Unreachable, match="not known"):
                on.erase("default", Erasure(scopes=("gone",)))
            assert relay.lost == 1
            assert not store.engine.scan("default", EventQuery()).records

    def test_submitted_batches_survive_a_bad_line_in_order(self, url, opened):
        with relayed(url) as relay:
            on = opened(where=relay.url)
            relay.lose_answers = 2
            futures = [
                on.submit(batches.append("default", "l", f"{number}", at=number)) for number in range(40)
            ]
            assert [each.result(timeout=60).first_seq for each in futures] == list(range(1, 41))

    def test_who_is_called_back_may_commit(self, opened):
        """In the thread that sends, while more is waiting to be sent."""
        on = opened()
        done = []
        futures = [on.submit(batches.set_ref("default", f"r{number}")) for number in range(300)]
        futures[0].add_done_callback(lambda _: done.append(on.commit(batches.set_ref("default", "called"))))
        assert all(each.result(timeout=60).versions for each in futures)
        on.close()
        assert [receipt.versions for receipt in done] == [{"called": 1}]

    def test_a_server_that_comes_back_is_used_again(self, tmp_path, opened):
        with running(treering.open(tmp_path / "store")) as first:
            on = opened(where=first)
            on.commit(batches.set_ref("default", "before"))
        port = int(first.rpartition(":")[2])
        with ThreadPoolExecutor(1) as pool:
            receipt = pool.submit(on.commit, batches.set_ref("default", "after"))
            with running(treering.open(tmp_path / "store"), port=port):
                assert receipt.result(timeout=30).versions == {"after": 1}
                assert on.refs("default", ["before", "after"]).keys() == {"before", "after"}

    def test_a_server_that_is_not_there_is_named(self, monkeypatch):
        monkeypatch.setattr(engine, "OPENING_SECONDS", 0.0)
        with pytest.raises(Unreachable, match=r"http://127.0.0.1:9 "):
            treering.open("http://127.0.0.1:9")

    def test_an_answer_that_is_cut_is_not_taken_for_a_whole_one(self):
        whole = wire.frame(wire.MESSAGE, b"x" * 10) + wire.frame(wire.END)
        for length in range(len(whole)):
            tags = []
            try:
                tags += [tag for tag, _ in wire.frames(wire.reader(whole[:length]), limit=100)]
            except wire.CutOff:
                continue
            assert wire.END not in tags

    @given(
        st.lists(st.tuples(st.sampled_from([wire.MESSAGE, wire.TICK, wire.END]), st.binary(max_size=9000)))
    )
    def test_frames_read_back(self, sent):
        data = b"".join(wire.frame(tag, each) for tag, each in sent)
        assert list(wire.frames(wire.reader(data), limit=9000)) == sent


class TestWaiting:
    def test_a_hundred_who_wait_hold_up_nobody(self, opened):
        """More than the server has worker threads."""
        on = opened()
        on.commit(batches.set_ref("default", "r"))
        waiting = 100
        with ThreadPoolExecutor(waiting) as pool:
            news = [pool.submit(on.wait, "default", 1, seconds=60) for _ in range(waiting)]
            assert on.refs("default", ["r"])
            on.commit(batches.set_ref("default", "r"))
            assert [each.result(timeout=60) for each in news] == [2] * waiting

    def test_waiting_for_many_spaces_takes_no_thread_each(self, opened, monkeypatch):
        monkeypatch.setattr(waits, "MAX_THREADS", 2)
        monkeypatch.setattr(waits, "_LOOK_SECONDS", 0.05)
        on = opened()
        spaces = [f"space-{number}" for number in range(10)]
        with ThreadPoolExecutor(20) as pool:
            news = [pool.submit(on.wait, space, 0, seconds=60) for space in spaces]
            quiet = [pool.submit(on.wait, space, 1, seconds=0.2) for space in spaces]
            for space in spaces:
                on.commit(batches.set_ref(space, "r"))
            assert [each.result(timeout=60) for each in news] == [1] * len(spaces)
            assert all(each.result(timeout=60) in {0, 1} for each in quiet)
        watching = [each for each in threading.enumerate() if each.name == "treering-waits"]
        assert len(watching) <= 2

    def test_an_upload_that_stalls_holds_up_its_own_caller_only(self, url, opened, keys, monkeypatch):
        monkeypatch.setattr(routes, "LARGE_BYTES", 1000)
        host, _, port = url.removeprefix("http://").partition(":")
        token = keys("a")
        head = (
            f"POST /gateway/stage HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n"
            f"{protocol.HEADER}: 1\r\ncontent-length: 5000\r\n\r\n"
        ).encode()
        with ExitStack() as stalled:
            for _ in range(routes.LARGE_AT_ONCE):
                line = stalled.enter_context(closing(socket.create_connection((host, int(port)))))
                line.sendall(head + b"x" * 100)
            assert opened(keys("b")).stage("default", [batches.noise(5000)])

    def test_an_upload_that_never_ends_is_given_up(self, url, monkeypatch):
        monkeypatch.setattr(routes, "BODY_SECONDS", 0.05)
        host, _, port = url.removeprefix("http://").partition(":")
        with closing(socket.create_connection((host, int(port)), timeout=60)) as line:
            line.sendall(
                f"POST /gateway/stage HTTP/1.1\r\nhost: {host}\r\n{protocol.HEADER}: 1\r\n"
                "content-length: 5000\r\n\r\nxxx".encode()
            )
            assert line.recv(100).startswith(b"HTTP/1.1 504")

    def test_a_slow_method_ticks_until_it_is_done(self, store, url, monkeypatch):
        monkeypatch.setattr(protocol, "TICK_SECONDS", 0.02)
        go_on = threading.Event()
        monkeypatch.setattr(store.engine, "reindex", lambda _: go_on.wait(60))
        with _sent(url, "reindex", wire.frame(wire.MESSAGE, b"\x80")) as response:
            frames = wire.frames(response.read, limit=100)
            assert [next(frames)[0] for _ in range(3)] == [wire.TICK] * 3
            go_on.set()
            rest = [tag for tag, _ in frames if tag != wire.TICK]
        assert rest == [wire.MESSAGE, wire.END]

    def test_slow_methods_of_one_caller_hold_up_no_other(self, store, opened, keys, monkeypatch):
        monkeypatch.setattr(protocol, "TICK_SECONDS", 0.02)
        go_on = threading.Event()
        begun = threading.Semaphore(0)
        reindex = store.engine.reindex

        def wait_for_a(space):
            if space == "a":
                begun.release()
                assert go_on.wait(60)
            reindex(space)

        for project in ("a", "b"):
            store.engine.commit(batches.set_ref(project, "r"))
        monkeypatch.setattr(store.engine, "reindex", wait_for_a)
        one, other = opened(keys("a")), opened(keys("b"))
        with ThreadPoolExecutor(8) as pool:
            slow = [pool.submit(one.reindex, "default") for _ in range(8)]
            for _ in range(routes.SLOW_AT_ONCE):
                assert begun.acquire(timeout=60)
            other.reindex("default")
            assert other.stats("default").refs == 1
            assert one.refs("default", ["r"])
            go_on.set()
            assert [each.result(timeout=60) for each in slow] == [None] * 8

    def test_an_error_after_the_first_tick_arrives_as_well(self, store, opened, monkeypatch):
        monkeypatch.setattr(protocol, "TICK_SECONDS", 0.01)
        ticked = threading.Event()
        frame = wire.frame

        def watched(tag, data=b""):
            if tag == wire.TICK:
                ticked.set()
            return frame(tag, data)

        def fail(*_):
            assert ticked.wait(60)
            raise Conflict("somebody holds it")

        on = opened()
        monkeypatch.setattr(wire, "frame", watched)
        monkeypatch.setattr(store.engine, "erase", fail)
        with pytest.raises(Conflict, match="somebody holds it"):
            on.erase("default", Erasure())


class TestEncryption:
    @pytest.fixture
    def certificate(self, tmp_path):
        return _certificate(tmp_path)

    def test_a_certificate_is_checked(self, store, certificate, monkeypatch):
        with running(store, ssl_certfile=certificate, ssl_keyfile=certificate) as url:
            with pytest.raises(Unreachable, match="certificate"):
                open_remote(url)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            on = open_remote(url)
            assert on.commit(batches.set_ref("default", "r")).versions == {"r": 1}
            (kept,) = on._connections._idle
            assert on.refs("default", ["r"])
            assert [each for each, _ in on._connections._idle] == [kept[0]]
            on.close()


def test_the_remote_engine_is_loaded_only_by_those_who_use_it():
    code = "import treering, sys; treering.open('memory:'); print('treering.engines.remote' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def _told(method, on, namespace):
    """What a call answers, without times, ids and the namespace's own name."""
    try:
        told = repr(CALLS[method](on, namespace))
    except NotFound:
        return NotFound
    assert CANARY not in told
    told = re.sub(r"\b[0-9a-z]{26}\b|\d{12,}", "...", told)
    return told.replace(f"space='{namespace}'", "space=...")


def _state(on, space):
    lease = on.claim(space, "job", holder="someone else", seconds=0)
    return portrait(on, space), on.wait(space, 0, seconds=0), on.stats(space).objects, lease is None


def _plant(on, space):
    draft = Draft(space, id=CANARY)
    body = draft.put(Content("text", CANARY.encode()), scope=f"/{CANARY}/x")
    draft.put(batches.noise(5000, seed=7), scope="s")
    draft.append(CANARY, body, scope=f"/{CANARY}/x", at=0)
    draft.set_ref(CANARY, CANARY.encode(), scope=f"/{CANARY}/x", links=(body,))
    draft.event(Event(id=CANARY, kind="note", ts_us=1, scope=f"/{CANARY}/x", agent=CANARY, body=body))
    batch = draft.batch()
    on.commit(batch)
    on.commit(batches.index_text(space, CANARY, CANARY))
    on.claim(space, "job", holder="b", seconds=60)


@contextmanager
def _sent(url, method, body, *, token=None, headers=None):
    made = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    sent = {protocol.HEADER: str(protocol.VERSION)} if headers is None else dict(headers)
    if token is not None:
        sent["authorization"] = f"Bearer {token}"
    with closing(made):
        made.request("POST", f"/gateway/{method}", body, sent)
        yield made.getresponse()


def _post(url, method, body, *, token=None, headers=None):
    with _sent(url, method, body, token=token, headers=headers) as response:
        return response.status, response.read()


def _certificate(folder):
    import datetime as dt
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file
