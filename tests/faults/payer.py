"""An agent that pays and writes files, in a process that is killed while it does.

The payment service and the file are outside of the store and tell what really happened. Paying with a key is
recognised when it is repeated; paying without one, and appending to the file, act each time they are called.

python -m tests.faults.payer

A nursery of such processes: it imports everything they need and forks each of them, which takes a few
milliseconds instead of a second. It has no thread, connection or store, so a child has nothing that a new
process would not have. Each line of standard input is a `Generation`; the answer says how its lives ended.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
import signal
import sys
import threading
import time
import urllib.parse
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

import treering
import treering.blobs.folder
import treering.engines.postgres.engine
import treering.engines.remote.engine
import treering.engines.sqlite.engine
import treering.limits.budgets
from treering.agent import create_agent
from treering.core import failpoints
from treering.errors import Conflict, InvalidInput

BUSY = 3
"""The exit code of a process that found the thread in the hands of another one, or the thread's question."""


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """A process that begins the conversation of a thread or goes on with it."""

    url: str
    thread: str
    service: str
    file: str
    """Where one of the tools writes its lines."""
    acknowledged: str
    """Where the process notes what it was told is durable."""
    failpoint: str | None = None
    record: bool = True
    """Whether the agent records runs; with their spans, commits to SQLite do not go into its log."""


class Generation(msgspec.Struct, frozen=True):
    """Processes that live at the same time, and when they are killed if they do not end before."""

    lives: list[Life]
    kill_after: float | None = None


class PaymentService(ThreadingHTTPServer):
    """Takes payments over HTTP, with or without ``Idempotency-Key``, and remembers them in order."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _PaymentHandler)
        self._payments: Counter[str] = Counter()
        self._keys: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._is_quiet = threading.Condition(self._lock)
        self._begun: set[Any] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._begun.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._is_quiet:
            self._begun.discard(request)
            self._is_quiet.notify_all()
        super().shutdown_request(request)

    def settle(self) -> None:
        """Wait for all requests that were sent before, also those whose sender is dead.

        Connections are accepted in order, so all earlier ones have begun when one of our own is answered.
        """
        _post(self.url, "", {}, method="GET")
        with self._is_quiet:
            earlier = set(self._begun)
            assert self._is_quiet.wait_for(lambda: not earlier & self._begun, 60)

    def pay(self, order: str, key: str | None) -> str:
        with self._lock:
            requests = 0 if key is None else self._keys.get((order, key), 0)
            if key is not None:
                self._keys[order, key] = requests + 1
            self._payments[order] += not requests
            return f"paid {order}"

    def paid_of(self, prefix: str) -> Counter[str]:
        """How often each order of a thread was paid."""
        with self._lock:
            return Counter(
                {order: count for order, count in self._payments.items() if order.startswith(prefix)}
            )

    def repeated_of(self, prefix: str) -> int:
        """How many requests repeated the key of an earlier one."""
        with self._lock:
            return sum(count - 1 for (order, _), count in self._keys.items() if order.startswith(prefix))


class _PaymentHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))["order"]
        server: Any = self.server
        answer = server.pay(order, self.headers.get("idempotency-key")).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def nurse() -> None:
    """Fork the processes of each generation, kill them, and report their wait statuses."""
    gc.freeze()
    assert threading.active_count() == 1
    for line in sys.stdin:
        generation = msgspec.json.decode(line, type=Generation)
        children: list[int] = []
        for life in generation.lives:
            child = os.fork()
            if not child:
                work(life)
                return
            children.append(child)
        if generation.kill_after is not None:
            time.sleep(generation.kill_after)
            for child in children:  # none was waited for, so these are still their process ids
                os.kill(child, signal.SIGKILL)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(statuses), flush=True)


def work(life: Life) -> None:
    """Begin the conversation of a thread or go on with it, in a process of its own."""
    if life.failpoint is not None:
        failpoints.arm_from(life.failpoint)
    service = life.service

    def pay(order: str) -> str:
        """Pay; paying again pays twice."""
        return _post(service, order, {})

    def pay_once(order: str, *, idempotency_key: str) -> str:
        """Pay under a key."""
        return _post(service, order, {"Idempotency-Key": idempotency_key})

    def write_line(line: str) -> str:
        """Append a line to the file."""
        with Path(life.file).open("a", encoding="utf-8") as opened:
            opened.write(line + "\n")
        return f"wrote {line}"

    with treering.open(life.url, durability="fast") as store, Path(life.acknowledged).open("a") as noted:
        agent = create_agent(
            name="payer",
            model=model_of(life.thread),
            record=life.record,
            tools=[pay, pay_once, write_line],
            checkpointer=store,
        )
        try:
            for event in agent.stream(thread_id=life.thread):
                if event.kind in ("tool_call", "tool_result") and event.call is not None:
                    (order,) = event.call.arguments.values()
                    print(event.kind, order, file=noted, flush=True)
                    list(store.effects.list(thread_id=life.thread))  # somebody looks, which flushes the log
                if event.kind == "finish":
                    waits = event.result is not None and event.result.interrupt is not None
                    raise SystemExit(BUSY if waits else 0)
        except (Conflict, InvalidInput):  # another process is ahead, or done
            raise SystemExit(BUSY) from None


def model_of(thread: str) -> Any:
    """Return a model that asks for three calls at once, then for three more, and then is done."""

    def model(messages: list[Any], _tools: Any) -> Any:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 2:
            return "All paid."
        calls = [
            ("pay", {"order": f"{thread}/{turn}/plain"}),
            ("pay_once", {"order": f"{thread}/{turn}/keyed"}),
            ("write_line", {"line": f"{thread}/{turn}/line"}),
        ]
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"{turn}-{name}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for name, arguments in calls
            ],
        }

    return model


def _post(service: str, order: str, headers: dict[str, str], *, method: str = "POST") -> str:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(service).netloc, timeout=60)
    try:
        connection.request(method, "/", json.dumps({"order": order}).encode(), headers)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


if __name__ == "__main__":
    nurse()
