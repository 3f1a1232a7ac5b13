"""Live streams over real connections: SSE and WebSocket clients that are cut off and go on."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import treering
from tests.server.running import running
from tests.server.test_serving import Server
from treering.core.batch import Event
from treering.core.ids import new_id
from treering.core.query import EventQuery
from treering.errors import Corrupt
from treering.runs.follow import LiveFilter
from treering.runs.timeline import event_to_dict
from treering.server import streams
from treering.server.auth import STREAM_SECONDS, Keys
from treering.server.routes.live import EventStream
from treering.server.settings import Settings
from treering.server.streams import Feed, FeedEvent


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def url(store):
    with running(store) as address:
        yield address


def note(store, *ids, kind="note", **columns):
    draft = store.draft()
    for each in ids:
        draft.event(Event(id=each, kind=kind, ts_us=1_760_000_000_000_000, scope="/run/r", **columns))
    return store.commit(draft).last_seq


class Reader:
    """A client of server-sent events that reads one by one."""

    def __init__(self, url, **options):
        self._client = httpx.Client(timeout=60)
        self._stream = self._client.stream("GET", url, **options)
        self.response = self._stream.__enter__()
        self._lines = self.response.iter_lines() if self.response.status_code == 200 else iter(())
        self.last_id = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.__exit__(None, None, None)
        self._client.close()

    def next(self):
        """The next event that has data: its name and its data."""
        fields = {}
        for line in self._lines:
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
                continue
            self.last_id = fields.get("id", self.last_id)
            if "data" in fields:
                return fields.get("event", "message"), json.loads(fields["data"])
            if fields:
                return "place", fields["id"]
        return None, None

    def events(self, count):
        found = []
        while len(found) < count:
            name, data = self.next()
            assert name in ("message", "place"), (name, data)
            if name == "message":
                found.append(data)
        return found


def test_a_client_that_was_cut_resumes_at_its_position(store, url):
    note(store, "a", "b")
    with Reader(f"{url}/live?after=0") as reader:
        assert reader.response.headers["content-type"].startswith("text/event-stream")
        assert [event["id"] for event in reader.events(2)] == ["a", "b"]
        note(store, "c")
        assert [event["id"] for event in reader.events(1)] == ["c"]
        place = reader.last_id
    note(store, "d", "e")
    with Reader(f"{url}/live?after=0", headers={"Last-Event-ID": place}) as reader:
        assert [event["id"] for event in reader.events(2)] == ["d", "e"]
        note(store, "f")
        assert [event["id"] for event in reader.events(1)] == ["f"]


def test_without_a_position_only_new_events_are_sent(store, url):
    note(store, "old")
    with Reader(f"{url}/live") as reader:
        assert reader.next() == ("place", "1")
        note(store, "new", agent="planner", run="r-1", model="gpt-5")
        (event,) = reader.events(1)
    assert event["id"] == "new"
    assert (event["agent"], event["run"], event["model"], event["seq"]) == ("planner", "r-1", "gpt-5", 2)


@pytest.mark.parametrize("place", ["7", str(10**30)])
def test_a_position_beyond_the_journal_sends_new_events(store, url, place):
    note(store, "old")  # of a journal that was begun anew, say
    with Reader(f"{url}/live", headers={"Last-Event-ID": place}) as reader:
        assert reader.next() == ("place", "1")
        note(store, "new")
        assert [event["id"] for event in reader.events(1)] == ["new"]
        assert reader.last_id == "2"
    following = store.timeline.follow(after=int(place))
    assert following.position == 2
    note(store, "newer")
    assert next(following).id == "newer"


def test_events_already_sent_by_another_server_are_not_repeated(store):
    feed = Feed(store.engine, store.space)
    feed._thread = threading.Thread()  # no reader: this server has seen nothing yet
    note(store, "a", "b")
    records = store.engine.scan(store.space, EventQuery(), limit=10).records

    async def go_on():
        pieces = feed.subscribe(LiveFilter(), after=1)
        assert (await anext(pieces)).seq == 1
        feed._add([FeedEvent(each, 0) for each in records], 2, threading.Event())
        piece = await anext(pieces)
        await pieces.aclose()
        return [each.event.id for each in piece.events]

    assert asyncio.run(go_on()) == ["b"]


def record_a_run(store, run):
    with store.run(agent="planner", id=run) as recorded:
        with recorded.tool("search", {"q": "refunds"}) as call:
            call.output = ["page 3"]
        recorded.message("assistant", "On page 3.", model="gpt-5", usage={"input": 400, "output": 20})
        with recorded.span("think", kind="reasoning"):
            pass
    store.flush()


@pytest.mark.parametrize("query", ["", "&types=all"])
def test_the_shape_of_the_timeline_is_that_of_its_route(store, url, query):
    record_a_run(store, "r-1")
    page = httpx.get(f"{url}/runs/r-1/timeline?limit=1000{query}").json()["events"]
    if query:  # the row of the run's end is written after its spans, with the time of the run's start
        assert {"reasoning.span.start", "run"} <= {each["type"] for each in page}

    def in_order(events):
        return sorted(events, key=lambda each: (each["ts"], each["type"], json.dumps(each["ref"])))

    with Reader(f"{url}/live?after=0&run=r-1&shape=timeline{query}") as reader:
        assert in_order(reader.events(len(page))) == in_order(page)
        sse_end = reader.last_id
    with connect(f"ws{url[4:]}/ws?after=0&run=r-1&shape=timeline{query}") as client:
        sent = []
        while len(sent) < len(page):
            sent += json.loads(client.recv(timeout=60))["events"]
        assert in_order(sent) == in_order(page)
    with Reader(f"{url}/live?after={sse_end}&shape=timeline") as reader:  # goes on with what happens
        record_a_run(store, "r-2")
        assert reader.events(1)[0]["run_id"] == "r-2"
    events = list(store.timeline.live(after=0, run="r-1", everything=bool(query), seconds=0))
    assert in_order([event_to_dict(each) for each in events]) == in_order(page)


def test_a_span_stored_at_its_end_is_resumed_whole(store, url):
    note(store, "s", kind="span.tool", name="search", span="s", run="r-1", duration_us=5)
    with Reader(f"{url}/live?after=0&shape=timeline") as reader:
        assert reader.events(1)[0]["type"] == "tool.call"
        assert reader.last_id in (None, "0")  # not after the call: its result would be skipped
        assert reader.events(1)[0]["type"] == "tool.result"
        assert reader.last_id == "1"


def test_types_need_the_shape_of_the_timeline(url):
    answer = httpx.get(f"{url}/live?types=all")
    assert answer.status_code == 422
    assert "shape=timeline" in answer.json()["detail"]


def test_only_matching_events_are_sent(store, url):
    note(store, "1", kind="span.tool", run="r-1", agent="a", thread="/t-1")
    note(store, "2", kind="span.llm", run="r-1", agent="b", thread="/t-1")
    note(store, "3", kind="message", run="r-2", agent="a", thread="/t-2")
    for query, wanted in (
        ("run=r-1", ["1", "2"]),
        ("run=r-2", ["3"]),
        ("agent=a", ["1", "3"]),
        ("thread=t-1", ["1", "2"]),
        ("kinds=span", ["1", "2"]),
        ("kinds=span.llm,message", ["2", "3"]),
        ("kinds=span.tool&kinds=message", ["1", "3"]),
    ):
        with Reader(f"{url}/live?after=0&{query}") as reader:
            assert [event["id"] for event in reader.events(len(wanted))] == wanted


def test_a_question_that_makes_no_sense_is_refused(url):
    for query, headers in (
        ("after=-1", {}),
        ("after=x", {}),
        ("kind=tool", {}),
        ("", {"Last-Event-ID": "abc"}),
    ):
        assert httpx.get(f"{url}/live?{query}", headers=headers).status_code == 422


@pytest.mark.parametrize("failure", [Corrupt("a damaged row"), AssertionError("a bug of ours")])
def test_an_unreadable_journal_disconnects_clients_which_may_reconnect(store, url, monkeypatch, failure):
    place = note(store, "a")
    scan = store.engine.scan
    broken = threading.Event()

    def damaged(space, query, **options):
        if broken.is_set():
            raise failure
        return scan(space, query, **options)

    monkeypatch.setattr(store.engine, "scan", damaged)
    with Reader(f"{url}/live") as reader:
        assert reader.next() == ("place", str(place))
        broken.set()
        note(store, "b")
        assert reader.next() == ("end", {"resume": place})
    broken.clear()
    with Reader(f"{url}/live?after={place}") as reader:
        assert [event["id"] for event in reader.events(1)] == ["b"]
        note(store, "c")
        assert [event["id"] for event in reader.events(1)] == ["c"]


def test_a_thread_is_followed_in_its_namespace(store, url):
    for namespace, thread in (("ns", "alice"), ("", "ns/alice"), ("", "alice")):
        with store.run(agent=f"{namespace}|{thread}", thread=thread, namespace=namespace) as run:
            run.message("user", "hi")
    store.flush()

    def agents(**narrow):
        found = store.timeline.follow(after=0, kinds=["message"], seconds=0, **narrow)
        return [(event.agent, event.namespace, event.thread) for event in found]

    assert agents(thread="alice", namespace="ns") == [("ns|alice", "ns", "alice")]
    assert agents(thread="ns/alice") == [("|ns/alice", "", "ns/alice")]
    with Reader(f"{url}/live?after=0&kinds=message&thread=alice&namespace=ns") as reader:
        assert [event["agent"] for event in reader.events(1)] == ["ns|alice"]
        for namespace in ("", "ns"):  # what comes while one looks on is told apart as well
            with store.run(agent=f"later {namespace}", thread="alice", namespace=namespace) as run:
                run.message("user", "hi")
            store.flush()
        (event,) = reader.events(1)
    assert (event["agent"], event["namespace"], event["thread"]) == ("later ns", "ns", "alice")


def test_every_event_is_sent_once_during_writes(store, url):
    total = 3000
    with Reader(f"{url}/live?after=0") as early:
        writers = [
            threading.Thread(
                target=lambda part=part: [note(store, f"{part}-{each}") for each in range(total // 4)]
            )
            for part in range(4)
        ]
        for writer in writers:
            writer.start()
        seen = early.events(total // 2)
        with Reader(f"{url}/live?after={early.last_id}") as late:
            seen += late.events(total - total // 2)
        for writer in writers:
            writer.join()
    numbers = [event["seq"] for event in seen]
    assert numbers == list(range(1, total + 1))


def test_a_server_that_stops_says_where_to_go_on(store):
    with running(store) as url:
        reader = Reader(f"{url}/live?after=0")
        talker = connect(f"{url.replace('http', 'ws')}/ws?after=0")
        note(store, "a")
        assert [event["id"] for event in reader.events(1)] == ["a"]
        assert json.loads(talker.recv())["seq"] == 0
        assert json.loads(talker.recv())["seq"] == 1
    with reader:
        name, data = reader.next()
        while name == "place":
            name, data = reader.next()
        assert (name, data) == ("end", {"resume": 1})
        assert reader.next() == (None, None)
    assert json.loads(talker.recv(timeout=60)) == {"seq": 1, "end": "end", "events": []}
    with pytest.raises(ConnectionClosed) as closed:
        talker.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


def test_a_websocket_gets_the_same_events_and_resumes(store, url):
    address = url.replace("http", "ws") + "/ws"
    note(store, "a")
    with connect(f"{address}?after=0") as talker:
        assert json.loads(talker.recv()) == {"seq": 0, "events": []}
        first = json.loads(talker.recv())
        assert [event["id"] for event in first["events"]] == ["a"]
        note(store, "b", agent="x")
        (event,) = json.loads(talker.recv())["events"]
        assert (event["id"], event["agent"]) == ("b", "x")
    note(store, "c")
    with connect(f"{address}?after={event['seq']}&kinds=note") as talker:
        talker.recv()
        assert [each["id"] for each in json.loads(talker.recv())["events"]] == ["c"]


def test_a_websocket_needs_a_key_where_others_do(store):
    with running(store, Settings(api_key="secret-0123456789")) as url:
        address = url.replace("http", "ws") + "/ws?after=0"
        with pytest.raises(InvalidStatus) as refused:
            connect(address)
        assert refused.value.response.status_code == 401
        with connect(f"{address}&api_key=secret-0123456789") as talker:
            assert json.loads(talker.recv())["seq"] == 0


def test_a_revoked_key_ends_its_open_streams_and_says_why(tmp_path):
    """The server is another process than the one that revokes, as an operator's command line is."""
    with treering.open(tmp_path / "store") as store:
        keys = Keys(store.engine, clock=store.clock)
        revoked, other = keys.create(scope="read"), keys.create(scope="read")
        with Server(tmp_path / "store") as served:
            socket = served.url.replace("http", "ws") + "/ws?after=0"
            bearer = {"Authorization": f"Bearer {revoked.token}"}
            busy = "?after=0&kinds=none"  # what the client does not get must not keep its stream open
            with (
                Reader(f"{served.url}/live{busy}", headers=bearer) as reader,
                Reader(f"{served.url}/live?after=0", headers={"X-API-Key": other.token}) as stays,
                connect(f"{socket}&api_key={revoked.token}") as talker,
            ):
                talker.recv()
                keys.revoke(revoked.key.id)
                with pytest.raises(ConnectionClosed) as closed:
                    talker.recv(timeout=60)
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, "was revoked" in closed.value.rcvd.reason) == (1008, True)
                name, data = "place", {}
                while name == "place":
                    note(store, new_id())
                    name, data = reader.next()
                assert (name, "was revoked" in str(data)) == ("revoked", True)
                assert reader.next() == (None, None)
                note(store, "last")
                while "last" not in [event["id"] for event in stays.events(1)]:
                    pass
    assert 2 * STREAM_SECONDS < 5


def test_a_stream_without_a_key_ends_when_there_is_one(store, url):
    with connect(f"{url.replace('http', 'ws')}/ws?after=0") as talker:
        talker.recv()
        Keys(store.engine, clock=store.clock).create(scope="read")
        with pytest.raises(ConnectionClosed) as closed:
            talker.recv(timeout=60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_a_stranger_follows_nothing_of_another_project(store):
    keys = Keys(store.engine, clock=store.clock)
    stranger = keys.create(project="stranger", scope="read")
    note(store.in_namespace("victim"), "secret", run="r-1")
    with running(store) as url:
        headers = {"Authorization": f"Bearer {stranger.token}"}
        with Reader(f"{url}/live?after=0&run=r-1", headers=headers) as reader:
            note(store.in_namespace("victim"), "another", run="r-1")
            note(store.in_namespace("stranger"), "own", run="r-1")
            assert [event["id"] for event in reader.events(1)] == ["own"]
        with connect(f"{url.replace('http', 'ws')}/ws?after=0", additional_headers=headers) as talker:
            talker.recv()
            assert [event["id"] for event in json.loads(talker.recv())["events"]] == ["own"]


def test_a_slow_reader_is_cut_off_and_delays_nobody(store):
    async def follow() -> int:
        feed = Feed(store.engine, store.space, most=50)
        slow = feed.subscribe(LiveFilter(), after=0)
        assert (await anext(slow)).seq == 0
        await asyncio.to_thread(note, store, "first")
        assert [each.event.id for each in (await anext(slow)).events] == ["first"]
        quick = feed.subscribe(LiveFilter(), after=1)
        await anext(quick)
        seen = 0
        for number in range(40):
            await asyncio.to_thread(note, store, *(f"{number}-{each}" for each in range(10)))
            while seen < (number + 1) * 10:
                seen += len((await anext(quick)).events)
        assert len(feed._ring) == 50
        pieces = [piece async for piece in slow]
        assert [(piece.end, piece.seq) for piece in pieces] == [("cut", 1)]
        again = feed.subscribe(LiveFilter(), after=pieces[-1].seq)
        count = 0
        while count < 400:
            count += len((await anext(again)).events)
        for each in (slow, quick, again):
            await each.aclose()
        return count

    assert asyncio.run(follow()) == 400


def flood(store, commits):
    """Commits of 50 events, 100 KB each."""
    text = json.dumps("x" * 2000).encode()
    for number in range(commits):
        draft = store.draft()
        for each in range(50):
            draft.event(Event(id=f"{number}-{each}", kind="note", ts_us=10**15, scope="/run/r", data=text))
        store.commit(draft)


def stuck_at(url):
    """A connection that asks for everything and reads nothing."""
    where = urlsplit(url)
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect((where.hostname, where.port))
    made.sendall(f"GET /live?after=0 HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
    return made


def test_a_reader_that_takes_nothing_does_not_hold_the_others(store, url):
    with stuck_at(url), Reader(f"{url}/live?after=0") as reader:
        flood(store, 20)
        assert len(reader.events(1000)) == 1000


def test_a_project_has_a_limited_number_of_followers(url, monkeypatch):
    monkeypatch.setattr(streams, "MAX_SUBSCRIBERS", 2)
    with Reader(f"{url}/live?after=0") as one, Reader(f"{url}/live?after=0") as two:
        assert [each.next()[0] for each in (one, two)] == ["place", "place"]
        refused = httpx.get(f"{url}/live")
        assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (429, True)
        assert "2 clients follow this project already" in refused.json()["detail"]
        with pytest.raises(InvalidStatus, match="429"):
            connect(url.replace("http", "ws") + "/ws")


def test_a_client_that_reads_nothing_is_disconnected(store, url, monkeypatch):
    monkeypatch.setattr("treering.server.routes.live.SEND_TIMEOUT_SECONDS", 0.2)
    given_up = threading.Event()
    send = EventStream._send

    async def noticed(stream, to):
        try:
            await send(stream, to)
        except TimeoutError:
            given_up.set()
            raise

    monkeypatch.setattr(EventStream, "_send", noticed)
    with stuck_at(url) as stuck:
        flood(store, 200)
        assert given_up.wait(30)
        stuck.settimeout(30)
        left = 0
        while piece := stuck.recv(1 << 16):  # until the server has hung up
            left += len(piece)
    assert left < 10_000_000, "it was not sent everything"


def test_following_in_python_wakes_with_the_commit(store):
    note(store, "a", "b", kind="span.tool", agent="x")
    following = store.timeline.follow(after=0, kinds=["span"])
    assert [next(following).id for _ in range(2)] == ["a", "b"]
    threading.Timer(0.05, note, (store, "c"), {"kind": "span.llm"}).start()
    found = next(following)
    assert (found.id, found.seq) == ("c", 3)
    note(store, "other")
    assert list(store.timeline.follow(after=3, kinds=["span"], seconds=0.05)) == []
    following.close()
    assert list(following) == []


def test_following_awaited_neither_blocks_the_store_nor_hangs(tmp_path):
    async def main() -> list[str]:
        async with treering.open_async(tmp_path / "async") as store:
            seen: list[str] = []
            whole = asyncio.Event()

            async def read() -> None:
                async for event in store.timeline.follow(after=0):
                    seen.append(event.id)
                    if len(seen) == 60:
                        whole.set()

            readers = [asyncio.create_task(read()) for _ in range(20)]  # more than the pool has threads
            for number in range(3):
                draft = store.draft()
                draft.event(Event(id=f"e{number}", kind="note", ts_us=10**15, scope="/run/r"))
                await store.commit(draft)
            await asyncio.wait_for(whole.wait(), 30)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            return seen

    seen = asyncio.run(main())
    assert sorted(seen) == sorted(["e0", "e1", "e2"] * 20)
