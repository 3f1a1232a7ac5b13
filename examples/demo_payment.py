"""A step of the demo: a process is killed while it pays, and the payment is made once all the same.

A bank, which is a real HTTP server, takes two orders: a refund, with an idempotency key, and a payment of
the carrier, which has none. It kills the agent's process when the money has moved and before it answers, so
nobody knows what happened. The next process makes the refund again under the same key, which the bank
recognises. It does not pay the carrier again: a person looks into the bank's books and says that it
happened.

Run by itself (``demo_payment.py STORE URL``), this is the agent's process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import treering
from treering.agent import create_agent

THREAD = "shop/refund-4711"


class Bank(ThreadingHTTPServer):
    """Moves money once per idempotency key, or each time where there is none; kills who asks first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Teller)
        self.booked: list[str] = []
        self.keys: dict[str, str] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def book(self, what: str, key: str | None) -> tuple[str, bool]:
        """Return the receipt, and whether money has moved."""
        if key in self.keys:
            return self.keys[key], False
        self.booked.append(what)
        receipt = f"receipt {len(self.booked)}"
        if key is not None:
            self.keys[key] = receipt
        return receipt, True


class _Teller(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        receipt, is_new = self.server.book(body["what"], self.headers.get("idempotency-key"))
        if is_new:
            os.kill(body["process"], signal.SIGKILL)  # after the money has moved, before the answer
        self.send_response(200)
        self.end_headers()
        self.wfile.write(receipt.encode())

    def log_message(self, *_: object) -> None:
        pass


def clerk(store: treering.Store, bank: str):
    """An agent that refunds an order and pays the carrier."""

    def ask(what: str, **headers: str) -> str:
        body = json.dumps({"what": what, "process": os.getpid()}).encode()
        with urllib.request.urlopen(urllib.request.Request(bank, body, headers)) as answer:
            return answer.read().decode()

    def refund(order: str, *, idempotency_key: str) -> str:
        """Pay a customer back."""
        return ask(f"refund of {order}", **{"Idempotency-Key": idempotency_key})

    def pay_carrier(order: str) -> str:
        """Pay the carrier; the bank has no keys for this."""
        return ask(f"carrier of {order}")

    def model(messages: list, _tools: list) -> dict:
        done = [each["content"] for each in messages if each["role"] == "tool"]
        if len(done) == 2:
            return {"role": "assistant", "content": "Both are paid: " + ", ".join(done)}
        name = ("refund", "pay_carrier")[len(done)]
        call = {"name": name, "arguments": '{"order": "4711"}'}
        return {"role": "assistant", "tool_calls": [{"id": name, "type": "function", "function": call}]}

    return create_agent(name="clerk", model=model, tools=[refund, pay_carrier], checkpointer=store)


def go_on(place: Path, bank: str) -> None:
    """Begin the thread, or go on with it: what the agent's process does."""
    with treering.open(place) as store:
        is_new = store.thread(THREAD).head is None
        clerk(store, bank).generate(thread_id=THREAD, prompt="Refund order 4711" if is_new else None)


def kill_payments(place: Path) -> tuple[list[str], list[tuple[str, str, int]]]:
    """Let the bank kill two processes, decide for a person; return the bank's books and the effects."""
    bank = Bank()
    url = f"http://127.0.0.1:{bank.server_port}/"
    process = [sys.executable, __file__, str(place), url]
    try:
        killed = [subprocess.run(process, check=False).returncode for _ in range(2)]
        if killed != [-signal.SIGKILL, -signal.SIGKILL]:
            sys.exit(f"   FAILED: the processes were not killed: {killed}")
        print(
            f"   the bank has booked: {', '.join(bank.booked)}; both processes were killed before its answer"
        )
        subprocess.run(process, check=True)
        with treering.open(place) as store:
            for effect in store.effects.unknown(thread_id=THREAD):
                print(f"   nobody knows: {effect.tool} {effect.arguments}; a person finds it in the books")
                store.effects.resolve(effect.id, happened=True, result="receipt 2", by="ann")
        subprocess.run(process, check=True)
        with treering.open(place) as store:
            print(f"   the clerk says: {store.thread(THREAD).load().messages[-1]['content']}")
            made = [(each.tool, each.status, each.attempt) for each in store.effects.list(thread_id=THREAD)]
    finally:
        bank.shutdown()
        bank.server_close()
    return bank.booked, made


if __name__ == "__main__":
    go_on(Path(sys.argv[1]), sys.argv[2])
