"""A store with what is hard to show.

Long names, live and crashed runs, a thousand spans, text from right to left, huge values, and every kind of
message.
"""

from __future__ import annotations

import base64
import json
import shutil
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples import sample_store

import treering
from treering.store import Store

LONG = "customer-support-escalation-and-refund-reconciliation-agent-for-the-european-region"
HEBREW = "שלום, איפה ההחזר שלי? הזמנה מספר 4711 לא הגיעה."
ARABIC = "مرحبا، أين المبلغ المسترد؟"

MARKDOWN = """\
# Refund for 4711

The customer paid **19.00 €** on *2026-03-02*; see [the invoice](https://example.com/4711).

- [x] found the order
- [ ] refunded it

| item | price |
|:-----|------:|
| cup  |  9.00 |
| tea  | 10.00 |

The sum is $s_1 + s_2$ and \\(a_1 * b_2\\) stays as it is.

```python
def refund(order: str) -> Decimal:
    return PRICES[order]  # exact
```

<img src=x onerror="document.title = 'owned'"> and [a trap](javascript:document.title='owned')
![a pixel](https://tracker.example/p.png)
"""
DIFF = """\
commit 4711

    Count the refunds

diff --git a/report.md b/report.md
--- a/report.md
+++ b/report.md
@@ -1,2 +1,2 @@
 # Report
-11 refunds
+12 refunds
"""
PATCH = """\
*** Begin Patch
*** Update File: notes.md
@@ # Notes
 kept
-old
+new
*** Add File: more.md
+first
*** End Patch
"""
ANSI = "\x1b[32m3 passed\x1b[0m, \x1b[1;31m1 failed\x1b[0m\x07\n"


def png() -> str:
    """A small red square."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xc0\x30\x20" * 24 for _ in range(24))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 24, 24, 8, 2, 0, 0, 0))
    return base64.b64encode(data + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")).decode()


MESSAGES = [
    {"role": "user", "content": "Refund order 4711, please. שלום \u202egnp.exe"},
    {"role": "assistant", "content": MARKDOWN},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "First look the order up.", "signature": "x"},
            {"type": "tool_use", "id": "t1", "name": "run", "input": {"command": "pytest -q\ngit diff"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": ANSI}]},
    {"role": "tool", "tool_call_id": "t2", "content": DIFF},
    {
        "role": "assistant",
        "content": [
            {
                "type": "tool_use",
                "id": "t6",
                "name": "Edit",
                "input": {
                    "file_path": "shop.py",
                    "old_string": "a = 1\nb = 2\n",
                    "new_string": "a = 1\nb = 3\n",
                },
            }
        ],
    },
    {"role": "tool", "tool_call_id": "t7", "content": PATCH},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "t3",
                "type": "function",
                "function": {"name": "search", "arguments": json.dumps({"q": "refund", "limit": 3})},
            }
        ],
    },
    {
        "role": "tool",
        "tool_call_id": "t3",
        "content": json.dumps([{"id": number, "name": f"order {number}"} for number in range(40)]),
    },
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "This is it:"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png()}"}},
            {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}},
        ],
    },
    {"role": "tool", "tool_call_id": "t4", "content": "line\n" * 5000},
    {"role": "tool", "tool_call_id": "t5", "content": "no such order", "status": "error"},
]


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """Open the store; its live run ends with it."""
    sample_store.create(folder)
    _crash(folder)
    with treering.open(folder, durability="fast") as store:
        _threads(store)
        _runs(store)
        _files_and_memory(store, folder)
        live = store.run(agent="researcher", id="show-live", thread="research/live").start()
        live.message("user", "Compare the three cheapest ways to send a parcel to Norway.")
        outer = live.span("research", input={"depth": 3}).start()
        with outer.tool("search", {"q": "parcel rates Norway 2026"}) as call:
            call.output = [{"title": "Rates", "url": "https://example.com/rates"}]
        waiting = outer.tool("fetch", {"url": "https://example.com/rates"}).start()
        store.flush()
        try:
            yield store
        finally:
            waiting.end()
            outer.end()
            live.end()


def _crash(folder: Path) -> None:
    with treering.open(folder) as store:
        run = store.run(agent="indexer", id="show-crashed", thread="work/indexer").start()
        run.message("user", "Index the archive.")
        span = run.span("index", id="show-index").start()
        with span.tool("read", {"path": "archive/2024.tar"}) as call:
            call.output = "81,204 files"
        span.tool("embed", {"batch": 17}).start()
        store.flush()


def _threads(store: Store) -> None:
    store.thread("show/gallery").append(*MESSAGES)
    store.thread(f"tenants/acme-international-holdings/{LONG}/2026-11-19T08:30:00Z").append(
        {"role": "user", "content": "A thread whose name does not fit anywhere. " * 4}
    )
    store.thread("show/right-to-left").append(
        {"role": "user", "content": HEBREW},
        {"role": "assistant", "content": f"{ARABIC}\n\n- {HEBREW}\n- **{ARABIC}** `code stays`"},
    )
    huge = {
        "customers": [
            {
                "id": number,
                "name": f"Customer {number}",
                "orders": [{"id": number * 10 + n, "total": f"{n}.00"} for n in range(5)],
            }
            for number in range(400)
        ],
        "a_key_that_is_quite_long_for_a_key_of_an_object_in_json": {
            "nested": {"deeply": {"so": {"that": {"it": {"goes": "on"}}}}}
        },
        "hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" * 4,
        "text": "word " * 2000,
        "flags": [True, False, None, 0, -1.5, 1e21, ""],
    }
    store.thread("show/huge-json").append(
        {"role": "user", "content": "Export every customer."},
        {"role": "tool", "tool_call_id": "x", "name": "export", "content": json.dumps(huge)},
        state=huge,
    )
    many = store.thread("show/busy")
    for number in range(12):
        many.append(
            *({"role": ("user", "assistant")[n % 2], "content": f"Message {number}.{n}"} for n in range(20))
        )
    waits = store.thread(f"show/waits/{LONG}")
    waits.append({"role": "user", "content": "Delete the staging database."})
    waits.interrupt(
        {
            "tool": "shell",
            "command": "dropdb --if-exists staging_eu_central_1 && createdb staging_eu_central_1",
            "why": "A migration failed half way. " * 6,
        }
    )


def _runs(store: Store) -> None:
    with store.run(
        agent=LONG,
        id="show-long-names",
        thread=f"tenants/acme-international-holdings/{LONG}/2026",
        tags=("a-rather-long-tag", "nightly", "eu-central-1"),
    ) as run:
        run.message("user", "Why is this so long? " * 20)
        with run.span(f"{LONG}.plan.and.execute", input={"goal": "x" * 300}) as span:
            with span.span(
                f"model call with a long name {LONG}",
                kind="llm",
                model="accounts/example-international/models/some-very-long-name-70b-instruct-2026-11-01",
            ) as call:
                call.use({"input": 1_234_567, "output": 98_765, "cache_read": 5_555_555})
            with span.tool(f"mcp__{LONG.replace('-', '_')}__reconcile", {"path": "/very/long/" * 30}) as call:
                call.output = "done " * 500
        run.message("assistant", "Because names are. " * 30)
    with store.run(agent="swarm", id="show-thousand", thread="work/swarm") as run:
        run.message("user", "Check every page of the site.")
        for number in range(100):
            with run.span(f"worker-{number}", kind="agent", input={"page": number}) as worker:
                for step in range(3):
                    with worker.span("generate", kind="llm", model="gpt-5-mini") as call:
                        call.use({"input": 900 + number, "output": 40})
                    with worker.tool("fetch", {"url": f"https://example.com/{number}/{step}"}) as call:
                        call.output = {"status": 200, "bytes": 4096 + step}
                    if number % 17 == 3 and step == 2:
                        try:
                            with worker.tool("check", {"page": number}):
                                raise TimeoutError("the page did not answer within 30 seconds")
                        except TimeoutError:
                            pass
        run.message("assistant", "Ninety-four pages are fine, six do not answer.")
    with store.run(agent="עוזר", id="show-right-to-left") as run:
        run.message("user", HEBREW)
        with run.tool("חיפוש", {"שאלה": HEBREW}) as call:
            call.output = {"תשובה": ARABIC}
        run.message("assistant", ARABIC)
    with store.run(agent="clerk", id="show-gallery", thread="show/gallery") as run:
        run.message("user", MESSAGES[0]["content"])
        with run.span(
            "answer", kind="llm", model="claude-sonnet-4-5", input={"messages": MESSAGES[:8]}
        ) as call:
            call.output = MESSAGES[2]
            call.use({"input": 4000, "output": 300})
        with run.tool("run", {"command": "pytest -q"}) as call:
            call.output = MESSAGES[3]["content"][0]["content"]
        with run.tool("export", {"all": True}) as call:
            call.output = {"rows": [{"id": n, "value": n * n} for n in range(3000)]}
        with run.tool("diff", {}) as call:
            call.output = MESSAGES[4]["content"]
        run.message("assistant", MESSAGES[1]["content"])
    store.flush()


def _files_and_memory(store: Store, folder: Path) -> None:
    source = folder.parent / "tree"
    for number in range(40):
        file = source / f"src/{LONG[:40]}/module_{number:02}/implementation.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'"""Module {number}."""\n' + "value = 1\n" * number)
    (
        source / "a file with spaces and a very long name that goes on and on, until it does not fit.txt"
    ).write_text("x")
    (source / f"{HEBREW[:12]}.txt").write_text(HEBREW)
    store.workspace.snapshot(
        source, name=LONG, note="a note that is rather long, because someone explained why " * 3
    )
    shutil.rmtree(source)
    for number in range(30):
        store.memory.save(
            f"projects/{LONG}/decision-{number:02}",
            f"# Decision {number}\n\nWe **chose** option {number % 3}.\n\n" + "Reason. " * 40,
            tags=["decision", "a-rather-long-tag"],
        )
    store.memory.save("עברית/שלום", HEBREW)
    prompt = "Look at every open ticket, answer those that the handbook answers, and write a summary. "
    store.schedules.cron(
        "*/5 * * * *",
        prompt=prompt * 4,
    )
    store.flush()
