"""Servers of one PostgreSQL store and bucket behind a load balancer: right, whichever of them answers.

HAProxy is used where it is installed, otherwise a TCP balancer of a few lines.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle

import httpx
import pytest

import treering
from tests.limits.test_webhooks import Receiver
from tests.server.test_live import Reader
from tests.server.test_serving import Server
from tests.servers import ports
from tests.servers.seaweed import SeaweedServer
from treering.core.query import EventQuery
from treering.errors import BudgetExceeded, Fenced, TreeringError
from treering.limits.webhooks import ALLOW_VARIABLE

pytestmark = [pytest.mark.postgres, pytest.mark.s3]
COUNT = 3
PATIENCE = 60
"""Seconds until a test gives up."""
HAPROXY = """
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    option redispatch
    retries 3
frontend entry
    bind 127.0.0.1:{port}
    default_backend servers
backend servers
    balance roundrobin
    option httpchk GET /readyz
    default-server inter 200ms fall 1 rise 1
{servers}
"""


class Deployment:
    """Running servers, and the address of the balancer in front of them."""

    def __init__(self, servers, url):
        self.servers = servers
        self.url = url

    def open(self, number, **options):
        """The store as a client of one server has it; the balancer's with ``None``."""
        return treering.open(self.url if number is None else self.servers[number].url, **options)


@pytest.fixture(scope="module")
def deployment(postgres_server, server, tmp_path_factory):
    """Servers that all tests share: the last two kill one, and make the others ask for keys."""
    seaweed = server(SeaweedServer, kind="seaweed", marker="s3")
    url, bucket = postgres_server.create_store(), seaweed.create_bucket()
    with pytest.MonkeyPatch.context() as environment, ExitStack() as stack:
        environment.setenv("AWS_ACCESS_KEY_ID", bucket.access_key)
        environment.setenv("AWS_SECRET_ACCESS_KEY", bucket.secret_key)
        environment.setenv(ALLOW_VARIABLE, "127.0.0.1")
        blobs = f"{bucket.endpoint}/{bucket.bucket}"
        with ThreadPoolExecutor(COUNT) as pool:
            made = [pool.submit(Server, url, "--store-blobs", blobs) for _ in range(COUNT)]
        servers = [stack.enter_context(each.result()) for each in made]
        targets = [int(each.url.rpartition(":")[2]) for each in servers]
        program = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        folder = tmp_path_factory.mktemp("haproxy")
        balancer = _haproxy(program, targets, folder) if program else _tcp_balancer(targets)
        yield Deployment(servers, stack.enter_context(balancer))
    postgres_server.drop_database(url)


@contextmanager
def _haproxy(program, targets, folder):
    (port,) = ports.free(1)
    lines = [f"    server s{each} 127.0.0.1:{each} check" for each in targets]
    (folder / "haproxy.cfg").write_text(HAPROXY.format(port=port, servers="\n".join(lines)))
    process = subprocess.Popen([program, "-db", "-q", "-f", folder / "haproxy.cfg"])
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(url) or process.poll() is not None)
        assert process.poll() is None, "haproxy has ended; run it by hand to see why"
        yield url
    finally:
        process.kill()
        process.wait()


@contextmanager
def _tcp_balancer(targets):
    """Pass each connection to the next server that takes it."""
    listening = socket.create_server(("127.0.0.1", 0))
    turns = cycle(targets)

    def copy(source, sink):
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept():
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                for _ in targets:
                    with suppress(OSError):
                        server = socket.create_connection(("127.0.0.1", next(turns)), 2)
                        break
                else:
                    client.close()
                    continue
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=copy, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()


def _answers(url) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.HTTPError:
        return False


def until(holds) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_lease_has_one_holder_and_a_late_one_is_fenced(deployment):
    with deployment.open(0) as one, deployment.open(1) as two:
        with ThreadPoolExecutor(8) as pool:
            claims = list(
                pool.map(
                    lambda n: (one, two)[n % 2].engine.claim("default", "job", holder=f"h{n}", seconds=60),
                    range(8),
                )
            )
        (lease,) = [each for each in claims if each is not None]
        one.engine.release(lease)
        newer = two.engine.claim("default", "job", holder="next", seconds=60)
        assert newer is not None
        assert newer.token > lease.token
        draft = one.draft()
        draft.set_ref("late", b"x", scope="/state/x")
        draft.fence(lease.name, lease.token)
        with pytest.raises(Fenced):
            one.commit(draft)


def test_a_strict_budget_holds_over_all_servers(deployment):
    with deployment.open(0) as setter:
        setter.budgets.set("searches", per="store", tool_calls=10, strict=True)

    def spend(number):
        done = 0
        with deployment.open(number) as store, store.run(agent="a") as run:
            for _ in range(8):
                with suppress(BudgetExceeded), run.tool("search", input={}):
                    done += 1
        return done

    with ThreadPoolExecutor(COUNT) as pool:
        assert sum(pool.map(spend, range(COUNT))) == 10
    with deployment.open(1) as setter:
        setter.budgets.remove("searches")


def test_an_occurrence_runs_once_and_an_alert_is_raised_once(deployment):
    receiver = Receiver()
    ran: list[str] = []
    with ExitStack() as stack:
        stack.callback(receiver.close)
        stores = [stack.enter_context(deployment.open(number)) for number in range(COUNT)]
        stores[0].alerts.set_rule("failed", "failed")
        stores[0].alerts.set_webhook("hook", receiver.url)
        tasks = [stores[0].schedules.once("2099-01-01", prompt="now") for _ in range(6)]
        for task in tasks:
            stores[0].schedules.run_now(task.id)
        for store in stores:
            stack.enter_context(store.schedules.worker(lambda _: ran.append("ran"), poll_seconds=0.1))
        for number, store in enumerate(stores):
            with suppress(RuntimeError), store.run(agent=f"agent {number}"):
                raise RuntimeError("no")
            store.flush()
        until(lambda: len(list(stores[0].schedules.occurrences())) == len(tasks))
        receiver.wait_for(COUNT)  # sent at least once; every server watches
        alerts = [each for each in stores[1].alerts.page().alerts if each.rule == "failed"]
        assert sorted(each.agent for each in alerts) == [f"agent {number}" for number in range(COUNT)]
        assert len({each.id for each in alerts}) == COUNT
        assert {each.outcome for each in stores[2].schedules.occurrences()} == {"ok"}
    assert len(ran) == len(tasks), "each ran once"


def test_any_server_returns_what_another_one_acknowledged(deployment):
    with ExitStack() as stack:
        stores = [stack.enter_context(deployment.open(number)) for number in (0, 1, 2, None)]
        for number in range(24):
            large = {"n": number, "file": "x" * 20_000 + str(number)}  # which goes to the bucket
            stores[number % 4].thread("t").append(large, on_conflict="retry")
            found = stores[(number + 1) % 4].thread("t").load().messages
            assert found[-1] == large
        assert stores[3].verify().ok


def test_a_killed_server_loses_nothing_and_its_streams_resume_elsewhere(deployment):
    acknowledged: list[int] = []
    victim = deployment.servers[1]

    def write(writer):
        with httpx.Client(timeout=30) as client:
            for number in range(writer, 120, 4):
                try:
                    answer = client.post(
                        f"{deployment.url}/threads/t{writer}/checkpoints", json={"append": [number]}
                    )
                except httpx.HTTPError:
                    continue  # nobody knows; it may be there or not
                if answer.is_success:
                    acknowledged.append(number)

    seen: list[str] = []
    place = "0"
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, writer) for writer in range(4)]
        with Reader(f"{victim.url}/live?after=0") as reader, suppress(httpx.HTTPError):
            while (event := reader.next())[0] is not None:
                if event[0] == "message":
                    seen.append(event[1]["id"])
                place = reader.last_id
                if len(seen) == 12:
                    victim.process.kill()
        for each in writing:
            each.result()
    assert victim.process.wait() == -signal.SIGKILL
    with deployment.open(0) as store:
        kept = [item for writer in range(4) for item in store.thread(f"t{writer}").load().messages]
        assert {*acknowledged} <= {*kept}
        assert len(kept) == len(set(kept))
        journal = [each.id for each in _journal(store)]
    with Reader(f"{deployment.url}/live", headers={"Last-Event-ID": place}) as reader:
        seen += [event["id"] for event in reader.events(len(journal) - len(seen))]
    assert seen == journal, "every event once and in order, from two servers"
    assert len(acknowledged) > 60
    print(f"checked {len(acknowledged)} acknowledged writes")
    with pytest.raises(TreeringError), deployment.open(1):
        raise AssertionError("it was opened")
    with deployment.open(None) as store:
        store.thread("t").append("the others answer", on_conflict="retry")


def _journal(store):
    page = store.engine.scan("default", EventQuery(), limit=1000)
    return [record.event for record in page.records]


def test_a_key_revoked_through_one_server_is_refused_by_the_others(deployment):
    a, b = (deployment.servers[number].url for number in (0, 2))
    admin = httpx.post(f"{a}/keys", json={"scope": "admin"}).json()["token"]
    head = {"authorization": f"Bearer {admin}"}
    until(lambda: httpx.get(f"{b}/runs").status_code == 401)  # which asks for keys from now on
    made = httpx.post(f"{a}/keys", json={"scope": "write"}, headers=head).json()
    given = {"authorization": f"Bearer {made['token']}"}
    assert {httpx.get(f"{url}/runs", headers=given).status_code for url in (a, b)} == {200}
    with Reader(f"{b}/live", headers=given) as stream:
        assert stream.next()[0] == "place"
        assert httpx.delete(f"{a}/keys/{made['key']['id']}", headers=head).is_success
        revoked = time.monotonic()
        name, _ = stream.next()
        while name == "place":
            name, _ = stream.next()
        assert name == "revoked"
    while any(httpx.get(f"{url}/runs", headers=given).status_code == 200 for url in (a, b)):
        assert time.monotonic() - revoked < PATIENCE
        time.sleep(0.1)
