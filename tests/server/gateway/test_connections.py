"""Errors keep their class, bad connections lose nothing, and callers do not block each other."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.gateway.requests import sent
from tests.server.relay import relayed
from tests.server.running import running

import treering
from treering import errors
from treering.core.batch import Draft, Event
from treering.core.query import Erasure, EventQuery
from treering.engines.remote import engine, protocol
from treering.engines.remote.engine import open_remote
from treering.engines.remote.transport import error_from_document, error_from_failure, parse_server_url
from treering.errors import (
    Conflict,
    MissingObjects,
    NotFound,
    TooLarge,
    Unreachable,
)
from treering.server import gateway, http
from treering.server.gateway import failure_of
from treering.server.http import problem_of
from treering.server.routes import gateway as routes
from treering.testing import batches


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
    def test_every_error_keeps_its_class_and_attributes(self, error):
        for arrived in (
            error_from_failure(failure_of(error)),
            error_from_document(msgspec.json.encode(problem_of(error))),
        ):
            assert type(arrived) is type(error)
            assert str(arrived) == str(error)
            assert vars(arrived) == vars(error)

    def test_an_unknown_error_is_a_treering_error(self):
        assert type(error_from_failure(protocol.Failure(kind="os", detail="x"))) is errors.TreeringError
        assert (
            type(error_from_failure(protocol.Failure(kind="MissingObjects", detail="x")))
            is errors.TreeringError
        )
        assert type(error_from_document(b"<html>")) is errors.TreeringError

    def test_a_class_unknown_to_the_client_becomes_its_nearest_base(self):
        class Local(NotFound):
            pass

        assert type(error_from_failure(failure_of(Local("x")))) is NotFound


class TestBadConnections:
    def test_a_call_is_retried_after_a_lost_response(self, url, opened):
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

    def test_a_rejection_in_the_middle_of_a_request_is_raised(self, opened):
        """As from a proxy that closes the connection before the rest arrives."""
        problem = msgspec.json.encode(problem_of(TooLarge("not that much")))
        answer = (
            "HTTP/1.1 413 Too Large\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(problem)}\r\nconnection: close\r\n\r\n"
        ).encode() + problem

        def reject():
            line, _ = listening.accept()
            with line:
                line.recv(1000)
                line.sendall(answer)

        on = opened()
        with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
            rejected = pool.submit(reject)
            on._connections._address = parse_server_url(
                f"http://127.0.0.1:{listening.getsockname()[1]}", with_key=False
            )
            on._connections.abandon()
            with pytest.raises(TooLarge, match="not that much"):
                on.stage("default", [batches.noise(12_000_000)])
            rejected.result(timeout=60)

    def test_a_call_that_is_not_repeatable_is_sent_once(self, store, url, opened):
        with relayed(url) as relay:
            on = opened(where=relay.url)
            on.commit(batches.events("default", batches.event(scope="gone")))
            relay.lose_answers = 1
            with pytest.raises(Unreachable, match="may or may not"):
                on.erase("default", Erasure(scopes=("gone",)))
            assert relay.lost == 1
            assert not store.engine.scan("default", EventQuery()).records

    def test_submitted_batches_survive_a_bad_connection_in_order(self, url, opened):
        with relayed(url) as relay:
            on = opened(where=relay.url)
            relay.lose_answers = 2
            futures = [
                on.submit(batches.append("default", "l", f"{number}", at=number)) for number in range(40)
            ]
            assert [each.result(timeout=60).first_seq for each in futures] == list(range(1, 41))

    def test_a_callback_may_commit(self, opened):
        """In the sending thread, while more batches are waiting to be sent."""
        on = opened()
        done = []
        futures = [on.submit(batches.set_ref("default", f"r{number}")) for number in range(300)]
        futures[0].add_done_callback(lambda _: done.append(on.commit(batches.set_ref("default", "called"))))
        assert all(each.result(timeout=60).versions for each in futures)
        on.close()
        assert [receipt.versions for receipt in done] == [{"called": 1}]

    def test_a_restarted_server_is_used_again(self, tmp_path, opened):
        with running(treering.open(tmp_path / "store")) as first:
            on = opened(where=first)
            on.commit(batches.set_ref("default", "before"))
        port = int(first.rpartition(":")[2])
        with ThreadPoolExecutor(1) as pool:
            receipt = pool.submit(on.commit, batches.set_ref("default", "after"))
            with running(treering.open(tmp_path / "store"), port=port):
                assert receipt.result(timeout=30).versions == {"after": 1}
                assert on.refs("default", ["before", "after"]).keys() == {"before", "after"}

    def test_the_error_names_an_unreachable_server(self, monkeypatch):
        monkeypatch.setattr(engine, "OPENING_SECONDS", 0.0)
        with pytest.raises(Unreachable, match=r"http://127.0.0.1:9 "):
            treering.open("http://127.0.0.1:9")

    def test_a_truncated_response_is_not_mistaken_for_a_complete_one(self):
        whole = protocol.frame(protocol.MESSAGE, b"x" * 10) + protocol.frame(protocol.END)
        for length in range(len(whole)):
            tags = []
            try:
                tags += [tag for tag, _ in protocol.frames(protocol.reader(whole[:length]), limit=100)]
            except protocol.Truncated:
                continue
            assert protocol.END not in tags

    @given(
        st.lists(
            st.tuples(
                st.sampled_from([protocol.MESSAGE, protocol.TICK, protocol.END]),
                st.binary(max_size=9000),
            )
        )
    )
    def test_frames_read_back(self, sent):
        data = b"".join(protocol.frame(tag, each) for tag, each in sent)
        assert list(protocol.frames(protocol.reader(data), limit=9000)) == sent


class TestWaiting:
    def test_a_hundred_waiting_clients_block_nobody(self, opened):
        """That is more than the server's worker threads."""
        on = opened()
        on.commit(batches.set_ref("default", "r"))
        waiting = 100
        with ThreadPoolExecutor(waiting) as pool:
            news = [pool.submit(on.wait, "default", 1, seconds=60) for _ in range(waiting)]
            assert on.refs("default", ["r"])
            on.commit(batches.set_ref("default", "r"))
            assert [each.result(timeout=60) for each in news] == [2] * waiting

    def test_waiting_for_many_spaces_needs_few_threads(self, opened, monkeypatch):
        monkeypatch.setattr(gateway, "MAX_THREADS", 2)
        monkeypatch.setattr(gateway, "_POLL_SECONDS", 0.05)
        on = opened()
        spaces = [f"space-{number}" for number in range(10)]
        with ThreadPoolExecutor(20) as pool:
            news = [pool.submit(on.wait, space, 0, seconds=60) for space in spaces]
            quiet = [pool.submit(on.wait, space, 1, seconds=0.2) for space in spaces]
            for space in spaces:
                on.commit(batches.set_ref(space, "r"))
            assert [each.result(timeout=60) for each in news] == [1] * len(spaces)
            assert all(each.result(timeout=60) in {0, 1} for each in quiet)
        watching = [each for each in threading.enumerate() if each.name == "treering-commit-waiters"]
        assert len(watching) <= 2

    def test_a_stalled_upload_blocks_only_its_own_caller(self, url, opened, keys, monkeypatch):
        monkeypatch.setattr(http, "LARGE_BYTES", 1000)
        host, _, port = url.removeprefix("http://").partition(":")
        token = keys("a")
        head = (
            f"POST /gateway/stage HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n"
            f"{protocol.HEADER}: 1\r\ncontent-length: 5000\r\n\r\n"
        ).encode()
        with ExitStack() as stalled:
            for _ in range(http.LARGE_AT_ONCE):
                line = stalled.enter_context(closing(socket.create_connection((host, int(port)))))
                line.sendall(head + b"x" * 100)
            assert opened(keys("b")).stage("default", [batches.noise(5000)])

    def test_an_upload_that_never_ends_times_out(self, url, monkeypatch):
        monkeypatch.setattr(http, "BODY_SECONDS", 0.05)
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
        with sent(url, "reindex", protocol.frame(protocol.MESSAGE, b"\x80")) as response:
            frames = protocol.frames(response.read, limit=100)
            assert [next(frames)[0] for _ in range(3)] == [protocol.TICK] * 3
            go_on.set()
            rest = [tag for tag, _ in frames if tag != protocol.TICK]
        assert rest == [protocol.MESSAGE, protocol.END]

    def test_slow_methods_of_one_caller_do_not_block_others(self, store, opened, keys, monkeypatch):
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

    def test_an_error_after_the_first_tick_is_raised(self, store, opened, monkeypatch):
        monkeypatch.setattr(protocol, "TICK_SECONDS", 0.01)
        ticked = threading.Event()
        frame = protocol.frame

        def watched(tag, data=b""):
            if tag == protocol.TICK:
                ticked.set()
            return frame(tag, data)

        def fail(*_):
            assert ticked.wait(60)
            raise Conflict("somebody holds it")

        on = opened()
        monkeypatch.setattr(protocol, "frame", watched)
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


def test_the_remote_engine_is_imported_only_when_used():
    code = "import treering, sys; treering.open('memory:'); print('treering.engines.remote' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


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
