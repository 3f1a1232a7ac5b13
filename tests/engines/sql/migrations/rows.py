"""A small store written with plain INSERTs: at least one row in every table, with content that decodes.

``python -m tests.engines.sql.migrations.rows`` prints it as the golden dump of the current schema. The golden
file of a released version is never rewritten, because it shows what a store of that version looks like.
"""

from __future__ import annotations

import sqlite3
from hashlib import sha256

from treering.core.content import KIND_NUMBERS, Content, pack_body, seal
from treering.core.digests import CommitLeaves, encode_leaves
from treering.engines.sql import schema
from treering.engines.sql.rows import body_key, item_key, run_key, run_number

DAY = 20_000
T0 = DAY * 86_400_000_000

MESSAGES = (
    Content("json", b'{"content":"Where is my refund?","role":"user"}'),
    Content("json", '{"content":"On its way — 3 days. 🌲","role":"assistant"}'.encode()),
)
LARGE = Content("text", b"a tree ring a year, " * 400)
JSON, TEXT = KIND_NUMBERS["json"], KIND_NUMBERS["text"]
SLOT = "s:batch-1:0.0"
PHRASES = ('{"topic":',)
"""The dictionary of the golden store: \x01 stands for this."""

SALT = bytes(range(16))
LEAVES = encode_leaves(CommitLeaves(events=2))

_TOKENS = {
    "input_tokens": 412,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
    "cache_write_1h_tokens": 0,
    "output_tokens": 96,
    "reasoning_tokens": 12,
    "other_tokens": 0,
}

ROWS: dict[str, list[dict]] = {
    "space": [{"no": 1, "name": "default", "seq": 3, "committed_at_us": T0 + 9, "created_at_us": T0}],
    "scope": [
        {"no": 1, "space": 1, "name": "/thread/support%2Falice"},
        {"no": 7, "space": 1, "name": "/run/r1"},
    ],
    "run": [{"space": 1, "no": run_number("r1"), "name": "r1"}],
    "commits": [
        {
            "no": 1, "space": 1, "batch": "batch-1", "first_seq": 1, "last_seq": 2, "committed_at_us": T0 + 5,
            "leaves": LEAVES, "digest": bytes(32), "checksum": -7_774_960_652_742_515_639,
        },
        {
            "no": 2, "space": 1, "batch": "batch-2", "first_seq": 3, "last_seq": 3, "committed_at_us": T0 + 9,
            "leaves": LEAVES, "digest": bytes(32), "checksum": 1_264_053_969_098_829_044,
        },
    ],
    "body": [
        {
            "space": 1, "key": body_key(1, 0), "scope": 1, "frame": seal(pack_body([MESSAGES[0]])),
            "salt": SALT, "checksum": 1_799_400_829,
        },
    ],
    "event": [
        {
            "space": 1, "day": DAY, "id": "e1", "seq": 1, "commit_no": 1, "kind": "message", "ts_us": T0 + 1,
            "scope": 1, "run": run_number("r1"), "thread": "support/alice", "role": "user",
            "data": b'\x01"refund"}', "body": "0.0",
            "salt": SALT, "checksum": 7_470_250_969_699_751_221,
        },
        {
            "space": 1, "day": DAY, "id": "e2", "seq": 2, "commit_no": 1, "kind": "message", "ts_us": T0 + 2,
            "scope": 7, "run": run_number("r1"), "span": "s1", "thread": "support/alice", "agent": "planner",
            "model": "m-1", "role": "assistant", "status": "ok", **_TOKENS, "cost_nanos": 1_500_000,
            "currency": "EUR", "duration_us": 8_230_000, "links": SLOT,
            "salt": SALT, "checksum": -156_655_710_563_745_668,
        },
        {
            "space": 1, "day": DAY, "id": "e3", "seq": 3, "commit_no": 2, "kind": "note", "ts_us": T0 + 3,
            "scope": 7, "links": f"o:{LARGE.name}", "salt": SALT, "checksum": 4_694_649_934_181_055_128,
        },
    ],
    "object": [
        {
            "space": 1, "name": bytes.fromhex(LARGE.name), "kind": TEXT, "size": len(LARGE.data),
            "stored_at_us": T0 + 9, "staged_until_us": T0 + 9, "frame": seal(LARGE.data),
        },
    ],
    "pack": [{"no": 1, "space": 1, "name": sha256(b"pack").hexdigest(), "size": 64, "created_at_us": T0}],
    "list": [
        {
            "no": 1, "space": 1, "id": "list-1", "scope": 1, "parent": None, "start": 0, "length": 2,
            "depth": 0, "seq": 2, "salt": SALT, "checksum": 1_996_673_989,
        },
        {
            "no": 2, "space": 1, "id": "list-2", "scope": 1, "parent": 1, "start": 1, "length": 2,
            "depth": 1, "seq": 3, "salt": SALT, "checksum": 1_025_871_294,
        },
    ],
    "item": [
        {
            "space": 1, "key": item_key(1, 0), "kind": None, "frame": None, "address": SLOT,
            "checksum": 895_810_371,
        },
        {
            "space": 1, "key": item_key(1, 1), "kind": JSON, "frame": seal(MESSAGES[1].data), "address": None,
            "checksum": 952_961_101,
        },
        {
            "space": 1, "key": item_key(2, 1), "kind": JSON, "frame": seal(b'"another end"'), "address": None,
            "checksum": 4_161_669_335,
        },
    ],
    "ref": [
        {
            "space": 1, "name": "thread/support/alice", "scope": 1, "version": 2,
            "value": b'{"length":2}', "links": "l:list-1", "seq": 2, "changed_at_us": T0 + 5,
            "salt": SALT, "checksum": 3_617_010_467,
        },
        {
            "space": 1, "name": "gone", "scope": 1, "version": 5, "value": None, "links": None, "seq": 3,
            "changed_at_us": T0 + 9, "salt": SALT, "checksum": 1_351_143_191,
        },
    ],
    "lease": [{"space": 1, "name": "sweep", "holder": "host-1", "token": 4, "expires_at_us": T0}],
    "rollup": [
        {
            "space": 1, "grain": "run", "key": run_key("r1"), "day": DAY, "agent": "planner", "model": "m-1",
            "kind": "message", "currency": "EUR", "bucket": 0, "events": 1, "errors": 0, **_TOKENS,
            "cost_nanos": 1_500_000, "duration_us": 8_230_000, "unpriced_events": 0, "unpriced_tokens": 0,
        },
    ],
    "collection": [{"no": 1, "space": 1, "name": "messages", "tokens": "words"}],
    "text": [
        {
            "space": 1, "no": 1, "collection": 1, "name": "e1", "namespace": "alice", "scope": 1,
            "source": SLOT, "salt": SALT, "checksum": 2_904_922_865,
        },
    ],
}  # fmt: skip


def fill(connection, dialect: str) -> None:
    """Insert all rows into prepared tables."""
    mark = "?" if dialect == "sqlite" else "%s"
    for table, rows in ROWS.items():
        for row in rows:
            columns, marks = ", ".join(f'"{name}"' for name in row), ", ".join([mark] * len(row))
            connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values()))


def stored(connection) -> dict[str, list[dict]]:
    """All rows that are there now, of the tables that `fill` fills."""
    found: dict[str, list[dict]] = {}
    for table, rows in ROWS.items():
        key = ", ".join(f'"{name}"' for name in rows[0])
        cursor = connection.execute(f"SELECT * FROM {table} ORDER BY {key}")
        names = [column[0] for column in cursor.description]
        found[table] = [dict(zip(names, row, strict=True)) for row in cursor]
    return found


def holds_all(found: dict[str, list[dict]]) -> bool:
    """Whether all rows of `fill` are there, whatever columns came later."""

    def is_there(row: dict, table: str) -> bool:
        return any(row.items() <= each.items() for each in found[table])

    return all(is_there(row, table) for table, rows in ROWS.items() for row in rows)


def main() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.ensure_schema(
        connection, "sqlite", location=":memory:", store_id="golden", phrases=lambda: PHRASES
    )
    connection.execute("UPDATE meta SET value = 'treering 0.1.0' WHERE key = 'created_by'")
    fill(connection, "sqlite")
    print("\n".join(connection.iterdump()))


if __name__ == "__main__":
    main()
