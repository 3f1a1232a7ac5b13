"""Webhooks: what is raised is sent at least once, signed and in order, whatever fails in between."""

from __future__ import annotations

import base64
import hmac
import json
import socket
import threading
from contextlib import suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import treering
from tests.limits.test_alerts import failed
from treering.core.batch import Draft
from treering.core.clock import ManualClock
from treering.core.encoding import encode_json
from treering.errors import InvalidInput, NotFound, Unreachable
from treering.limits.alerts import AlertWatch
from treering.limits.webhooks import ALLOW_VARIABLE, SCOPE, WEBHOOKS
from treering.store import Store

SECRET = "a secret of the tests"


@pytest.fixture(autouse=True)
def _loopback_is_allowed(monkeypatch):
    monkeypatch.setenv(ALLOW_VARIABLE, "127.0.0.1")


class Receiver:
    """A real HTTP server that answers with the codes it is given, then with 200."""

    def __init__(self, host="127.0.0.1", port=0):
        self.answers = []
        self.requests = []
        self.arrived = threading.Condition()
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver.arrived:
                    status = receiver.answers.pop(0) if receiver.answers else 200
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    receiver.requests.append((status, headers, body))
                    receiver.arrived.notify_all()
                receiver.may_answer.wait()
                self.send_response(status)
                if status == 302:
                    self.send_header("location", receiver.url + "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer((host, port), Handler)
        self.url = f"http://{host}:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def wait_for(self, count):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, timeout=60)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def messages(self):
        return [json.loads(body)["message"] for status, _, body in self.requests if status == 200]


@pytest.fixture
def receiver():
    opened = Receiver()
    yield opened
    opened.close()


@pytest.fixture
def secret(monkeypatch):
    monkeypatch.setenv("TREERING_WEBHOOK_SECRET_TESTS", SECRET)
    return "TREERING_WEBHOOK_SECRET_TESTS"


def test_a_webhook_receives_new_alerts_signed_and_in_order(store, receiver, secret):
    store.alerts.set_rule("failed", "failed")
    failed(store, why="before")
    store.alerts.examine()
    store.alerts.set_webhook("ops", receiver.url, secret_env=secret)
    for why in ("one", "two"):
        failed(store, why=why)
    store.alerts.examine()
    assert store.alerts.deliver("ops").sent == 2
    assert store.alerts.deliver("ops").sent == 0
    assert [message[-3:] for message in receiver.messages()] == ["one", "two"]
    _, headers, body = receiver.requests[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(SECRET.encode(), signed, sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert json.loads(body)["id"] == headers["webhook-id"]


def test_what_was_not_taken_is_sent_again_and_nothing_overtakes_it(store, receiver):
    store.alerts.set_webhook("ops", receiver.url)
    store.alerts.set_rule("failed", "failed")
    for why in ("one", "two"):
        failed(store, why=why)
    store.alerts.examine()
    receiver.answers += [503, 302, 200, 500]
    assert store.alerts.deliver("ops").error == "the receiver answered 503"
    assert store.alerts.deliver("ops").error == "the receiver answered 302"
    half = store.alerts.deliver("ops")
    assert (half.sent, half.error) == (1, "the receiver answered 500")
    assert store.alerts.deliver("ops").sent == 1
    assert [message[-3:] for message in receiver.messages()] == ["one", "two"]
    assert len(receiver.requests) == 5  # the redirection was not followed


def test_a_receiver_that_is_away_is_an_error_and_no_loss(store, receiver):
    store.alerts.set_webhook("ops", "http://127.0.0.1:1/hook")
    store.alerts.set_rule("failed", "failed")
    failed(store)
    store.alerts.examine()
    assert "refused" in store.alerts.deliver("ops").error.lower()
    store.alerts.set_webhook("ops", receiver.url)
    assert store.alerts.deliver("ops").sent == 1


def test_an_answer_that_is_no_http_is_an_error_and_no_loss(store, receiver):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def babble():
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"what?\r\n\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        store.alerts.set_webhook("ops", f"http://127.0.0.1:{listening.getsockname()[1]}/hook")
        store.alerts.set_rule("failed", "failed")
        failed(store)
        store.alerts.examine()
        assert "BadStatusLine" in store.alerts.deliver("ops").error
        thread.join()
    store.alerts.set_webhook("ops", receiver.url)
    assert store.alerts.deliver("ops").sent == 1


def test_an_alert_whose_sender_died_is_sent_again_under_its_id(store, receiver, monkeypatch):
    store.alerts.set_webhook("ops", receiver.url)
    store.alerts.set_rule("failed", "failed")
    failed(store)
    store.alerts.examine()

    def dies(*_):
        raise Unreachable("the process is gone")

    with monkeypatch.context() as patch:
        patch.setattr("treering.limits.webhooks._move", dies)
        with pytest.raises(Unreachable):
            store.alerts.deliver("ops")
    assert store.alerts.deliver("ops").sent == 1
    first, second = ({name.lower(): value for name, value in each[1].items()} for each in receiver.requests)
    assert first["webhook-id"] == second["webhook-id"]


def test_only_one_sends_at_a_time(store, receiver):
    store.alerts.set_webhook("ops", receiver.url)
    lease = store.engine.claim(store.space, "alerts/webhook/ops", holder="someone", seconds=60)
    assert store.alerts.deliver("ops").is_busy
    store.engine.release(lease)
    assert not store.alerts.deliver("ops").is_busy


def test_without_its_secret_nothing_is_sent(store, receiver, monkeypatch):
    monkeypatch.delenv("TREERING_WEBHOOK_SECRET_TESTS", raising=False)
    store.alerts.set_webhook("ops", receiver.url, secret_env="TREERING_WEBHOOK_SECRET_TESTS")
    store.alerts.set_rule("failed", "failed")
    failed(store)
    store.alerts.examine()
    assert "TREERING_WEBHOOK_SECRET_TESTS" in store.alerts.deliver("ops").error
    assert receiver.requests == []


def test_a_forgotten_alert_is_not_sent(store, receiver):
    store.alerts.set_webhook("ops", receiver.url)
    store.alerts.set_rule("failed", "failed")
    with suppress(RuntimeError), store.run(agent="a", thread="alice"):
        raise RuntimeError("private")
    store.flush()
    assert len(store.alerts.examine()) == 1
    store.forget(thread="alice")
    assert store.alerts.deliver("ops").sent == 0
    assert receiver.requests == []


def test_an_alert_not_accepted_for_days_is_skipped(receiver, caplog):
    clock = ManualClock()
    with treering.open("memory:") as opened:
        store = Store(opened.engine, clock=clock)
        store.alerts.set_webhook("ops", receiver.url)
        store.alerts.set_rule("failed", "failed")
        failed(store)
        store.alerts.examine()
        receiver.answers += [500, 500]
        assert store.alerts.deliver("ops").error
        clock.advance(seconds=4 * 86_400)
        assert store.alerts.deliver("ops").error is None
        assert "webhook 'ops' did not accept alert" in caplog.text
        store.close()


def test_the_watch_judges_and_sends_by_itself_and_tries_again(store, receiver):
    store.alerts.set_webhook("ops", receiver.url)
    store.alerts.set_rule("failed", "failed")
    receiver.answers += [503, 503]
    with AlertWatch(store.alerts, seconds=0.01, first_retry=0.01):
        failed(store)
        receiver.wait_for(3)
    assert len(receiver.messages()) == 1
    assert len({headers["webhook-id"] for _, headers, _ in receiver.requests}) == 1


def test_the_watch_of_a_closed_store_ends_and_says_so_once(caplog):
    store = treering.open("memory:")
    store.alerts.set_webhook("ops", "https://example.org/hook")
    watch = store.alerts.watch(seconds=0.01).start()
    store.close()
    watch._thread.join(timeout=60)
    assert not watch._thread.is_alive()
    watch.close()
    assert [record.message for record in caplog.records] == [
        "the store of the alerts was closed; nothing more is sent"
    ]


def raised(store, *whys):
    store.alerts.set_rule("failed", "failed")
    for why in whys:
        failed(store, why=why)


def test_a_receiver_that_does_not_answer_keeps_nobody_waiting(store, receiver):
    slow = Receiver()
    slow.may_answer.clear()
    try:
        store.alerts.set_webhook("a slow one", slow.url)
        store.alerts.set_webhook("ops", receiver.url)
        with AlertWatch(store.alerts, seconds=0.01):
            raised(store, "one")
            slow.wait_for(1)
            receiver.wait_for(1)
            failed(store, why="two")
            receiver.wait_for(2)  # judged and sent while the other one still thinks
            assert len(slow.requests) == 1
            slow.may_answer.set()
            slow.wait_for(2)
        assert [message[-3:] for message in slow.messages()] == ["one", "two"]
    finally:
        slow.may_answer.set()
        slow.close()


def test_closing_the_watch_waits_for_no_backlog(store, receiver):
    store.alerts.set_webhook("ops", receiver.url)
    receiver.may_answer.clear()
    watch = store.alerts.watch(seconds=0.01)
    raised(store, "one", "two")
    with watch:
        receiver.wait_for(1)
        watch.stop()
        receiver.may_answer.set()
    assert len(receiver.messages()) == 1
    assert store.alerts.deliver("ops").sent == 1
    assert [message[-3:] for message in receiver.messages()] == ["one", "two"]


def test_closing_the_watch_waits_only_so_long_for_an_answer(store, receiver):
    store.alerts.set_webhook("ops", receiver.url)
    receiver.may_answer.clear()
    watch = store.alerts.watch(seconds=0.01).start()
    raised(store, "one")
    receiver.wait_for(1)
    watch.close(seconds=0)
    assert store.alerts.deliver("ops").is_busy  # its lease is held until the receiver has answered
    receiver.may_answer.set()
    watch.close(seconds=60)
    assert store.alerts.deliver("ops").sent == 0


def test_more_webhooks_than_turns_all_get_theirs(store, receiver, monkeypatch):
    monkeypatch.setattr("treering.limits.alerts.MAX_SENDING", 1)
    names = ("rules", "one", "two")  # a webhook may be named as anything
    for name in names:
        store.alerts.set_webhook(name, receiver.url)
    raised(store, "no")
    with store.alerts.watch(seconds=0.01):
        receiver.wait_for(len(names))
    assert [store.alerts.deliver(name).sent for name in names] == [0, 0, 0]


def test_alerts_of_a_dead_sender_are_delivered(store, receiver):
    store.alerts.set_webhook("ops", receiver.url)
    raised(store, "one")
    store.alerts.examine()
    lease = store.engine.claim(store.space, "alerts/webhook/ops", holder="someone", seconds=60)
    watch = store.alerts.watch()
    watch.run_once()
    watch.close(seconds=60)
    assert watch.is_waiting
    store.engine.release(lease)


def test_webhooks_are_listed_and_removed(store):
    store.alerts.set_webhook("ops", "https://example.org/hook", secret_env="TREERING_WEBHOOK_SECRET_TESTS")
    (webhook,) = store.alerts.webhooks()
    assert (webhook.name, webhook.url, webhook.secret_env) == (
        "ops",
        "https://example.org/hook",
        "TREERING_WEBHOOK_SECRET_TESTS",
    )
    assert store.alerts.remove_webhook("ops")
    assert store.alerts.webhooks() == ()
    with pytest.raises(NotFound, match="webhook 'ops' not found"):
        store.alerts.deliver("ops")
    for url in (
        "file:///etc/passwd",
        "https://",
        "https://user:word@example.org/",
        "https://[::1/",
        "https://example.org:port/",
        "https://example.org/a b",
        "https://example.org/a\nx-evil: 1",
    ):
        with pytest.raises(InvalidInput):
            store.alerts.set_webhook("ops", url)


@pytest.fixture
def local():
    """A store in memory: where alerts are kept does not matter here."""
    with treering.open("memory:") as opened:
        yield opened


def alert(store):
    store.alerts.set_rule("failed", "failed")
    failed(store, why="it")
    store.alerts.examine()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1", "2130706433", "0x7f.0.0.1", "0.0.0.0", "localhost", "[::1]",
        "[::ffff:127.0.0.1]",
        "[::]", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "198.18.0.1",
        "224.0.0.1", "255.255.255.255", "192.0.2.1", "168.63.129.16", "[fec0::1]",
        "[fe80::1]", "[fc00::1]", "[ff02::1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::1]", "[::ffff:10.0.0.1]",
    ],
)  # fmt: skip
def test_a_webhook_cannot_reach_an_address_that_is_not_public(local, receiver, host, monkeypatch):
    monkeypatch.delenv(ALLOW_VARIABLE)
    port = receiver.url.rpartition(":")[2]
    local.alerts.set_webhook("ops", f"http://{host}:{port}")
    alert(local)
    error = local.alerts.deliver("ops").error
    assert "not a public address" in error
    assert ALLOW_VARIABLE in error
    assert receiver.requests == []


def test_a_name_is_resolved_once_and_the_request_goes_to_that_address(local, receiver, monkeypatch):
    """A name that is public when it is checked and local when it is used (DNS rebinding)."""
    other = Receiver("127.0.0.2", int(receiver.url.rpartition(":")[2].partition("/")[0]))
    try:
        monkeypatch.setenv(ALLOW_VARIABLE, "127.0.0.2/32")
        answers, resolve = ["127.0.0.2"], socket.getaddrinfo
        asked = []

        def rebinding(host, port, *rest, **more):
            if host != "rebinding.example":
                return resolve(host, port, *rest, **more)
            asked.append(host)
            return resolve(answers.pop() if answers else "127.0.0.1", port, *rest, **more)

        monkeypatch.setattr(socket, "getaddrinfo", rebinding)
        port = receiver.url.rpartition(":")[2]
        local.alerts.set_webhook("ops", f"http://rebinding.example:{port}")
        alert(local)
        assert local.alerts.deliver("ops").sent == 1
        assert len(asked) == 1
        assert [headers["host"] for _, headers, _ in other.requests] == [
            f"rebinding.example:{port.partition('/')[0]}"
        ]
        failed(local, why="another")
        local.alerts.examine()
        assert "not a public address" in local.alerts.deliver("ops").error  # now it is 127.0.0.1
        assert receiver.requests == []
    finally:
        other.close()


def test_a_name_with_one_private_address_is_refused_whole(local, receiver, monkeypatch):
    resolve = socket.getaddrinfo

    def two(host, port, *rest, **more):
        if host != "two.example":
            return resolve(host, port, *rest, **more)
        return resolve("127.0.0.1", port, *rest, **more) + resolve("10.0.0.1", port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", two)
    local.alerts.set_webhook("ops", receiver.url.replace("127.0.0.1", "two.example"))
    alert(local)
    assert "10.0.0.1" in local.alerts.deliver("ops").error
    assert receiver.requests == []


def test_a_proxy_of_the_environment_is_not_used(local, receiver, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, receiver.url)
    monkeypatch.delenv(ALLOW_VARIABLE)
    local.alerts.set_webhook("ops", "http://10.0.0.1/x")
    alert(local)
    assert "not a public address" in local.alerts.deliver("ops").error
    assert receiver.requests == []


@pytest.mark.parametrize(
    "variable", ["DB_PASSWORD", "PATH", "AWS_SECRET_ACCESS_KEY", "treering_webhook_secret", ""]
)
def test_a_webhook_is_signed_only_with_a_variable_made_for_it(local, receiver, variable, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "guess me")
    with pytest.raises(InvalidInput, match="TREERING_WEBHOOK_SECRET"):
        local.alerts.set_webhook("ops", receiver.url, secret_env=variable)
    # The same for one that got into the store in another way.
    local.alerts.set_webhook("ops", receiver.url)
    draft = Draft(local.space)
    draft.set_ref(
        WEBHOOKS + "ops",
        encode_json({"name": "ops", "url": receiver.url, "secret_env": variable}),
        scope=SCOPE,
    )
    local.engine.commit(draft.batch())
    alert(local)
    assert "TREERING_WEBHOOK_SECRET" in local.alerts.deliver("ops").error
    assert receiver.requests == []


def test_a_request_over_tls_goes_to_a_server_that_proves_its_name(local, receiver):
    local.alerts.set_webhook("ops", receiver.url.replace("http:", "https:"))  # it does not speak TLS
    alert(local)
    assert "SSL" in local.alerts.deliver("ops").error
    assert receiver.requests == []


def test_a_wrong_list_of_networks_is_named(local, receiver, monkeypatch):
    monkeypatch.setenv(ALLOW_VARIABLE, "10.0.0.0/99")
    local.alerts.set_webhook("ops", receiver.url)
    alert(local)
    assert f"{ALLOW_VARIABLE} is invalid" in local.alerts.deliver("ops").error
