"""An agent that pays and writes files, in a process that is killed while it does.

The payment service and the file are outside of the store and tell what really happened. Paying with a key is
recognised when it is repeated; paying without one, and appending to the file, act each time they are called.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import treering
from treering.agent import create_agent
from treering.core import failpoints
from treering.errors import Conflict, InvalidInput

BUSY = 3
"""The exit code of a process that found the thread in the hands of another one, or the thread's question."""


class PaymentService(ThreadingHTTPServer):
    """Takes payments over HTTP, with or without ``Idempotency-Key``, and remembers them in order."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _PaymentHandler)
        self.payments: list[tuple[str, str | None]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def pay(self, order: str, key: str | None) -> str:
        with self._lock:
            if key is None or (order, key) not in self.payments:
                self.payments.append((order, key))
            return f"paid {order}"

    def paid(self, order: str) -> int:
        with self._lock:
            return sum(each == order for each, _ in self.payments)


class _PaymentHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))["order"]
        server: Any = self.server
        answer = server.pay(order, self.headers.get("idempotency-key")).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


def work(url: str, thread: str, service: str, file: str, failpoint: str | None) -> None:
    """Begin the conversation of a thread or go on with it, in a process of its own."""
    if failpoint is not None:
        failpoints.arm_from(failpoint)

    def pay(order: str) -> str:
        """Pay; paying again pays twice."""
        return _post(service, order, {})

    def pay_once(order: str, *, idempotency_key: str) -> str:
        """Pay under a key."""
        return _post(service, order, {"Idempotency-Key": idempotency_key})

    def write_line(line: str) -> str:
        """Append a line to the file."""
        with Path(file).open("a", encoding="utf-8") as opened:
            opened.write(line + "\n")
        return f"wrote {line}"

    with treering.open(url, durability="fast") as store:
        agent = create_agent(
            name="payer", model=model_of(thread), tools=[pay, pay_once, write_line], checkpointer=store
        )
        try:
            result = agent.generate(thread_id=thread)
        except (Conflict, InvalidInput):  # another process is ahead, or done
            raise SystemExit(BUSY) from None
        if result.interrupt is not None:
            raise SystemExit(BUSY)


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


def _post(service: str, order: str, headers: dict[str, str]) -> str:
    body = json.dumps({"order": order}).encode()
    request = urllib.request.Request(service, data=body, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()
