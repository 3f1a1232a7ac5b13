"""Damage to data that others wrote, drawn from a seed: odd bytes, odd JSON, odd times.

A test that fails names the seed; with ``TREERING_FUZZ_SEED`` set to it, only that one is tried.
``TREERING_FUZZ_SECONDS`` is how long the long versions take (``make soak``).
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

SEED: Final = "TREERING_FUZZ_SEED"
SECONDS: Final = "TREERING_FUZZ_SECONDS"

ODD_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    3,
    2**31,
    -(2**63),
    2**64,
    10**30,
    0.5,
    1e308,
    -1e-9,
    1763280000,
    1763280000123,
    "",
    " ",
    "\0",
    "\ud800",
    "\u202e\x1b[31m",
    "x" * 5000,
    "../../etc/passwd",
    "null",
    "2026-13-45T99:99:99Z",
    "0000-00-00",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "+12026-01-01T00:00:00Z",
    "yesterday",
    "1e400",
    [],
    {},
    [[[[]]]],
    [None],
    {"": None},
    {"$datetime": "x"},
    {"type": {"type": "text"}},
    ["a", 1, None, {}],
)


_ODD_BYTES: Final = (b"\xff", b"\x00", b"\xed\xa0\x80", b"\xc3", b"{", b"[" * 3000, b'"', b"\\u")
_ODD_NAMES: Final = ("", "type", "id", "timestamp", "content", "\ud800", "x" * 300)


def seeds(count: int) -> Iterator[int]:
    """Yield the seeds to try: so many, or the one that the environment names."""
    given = os.environ.get(SEED)
    yield from range(count) if given is None else (int(given),)


def seeds_for(share: float) -> Iterator[int]:
    """Yield seeds for a share of the time that the environment sets (an hour unless it does)."""
    given = os.environ.get(SEED)
    if given is not None:
        yield int(given)
        return
    until = time.monotonic() + float(os.environ.get(SECONDS, "3600")) * share
    seed = 1_000_000
    while time.monotonic() < until:
        yield seed
        seed += 1


def damaged_bytes(chance: random.Random, data: bytes) -> bytes:
    """Change a few bytes: flip, insert, remove, repeat or cut them off."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(changed) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[at:at] = chance.choice(
                (b"\xff", b"\x00", b"\xed\xa0\x80", b"\xc3", b"{", b"[" * 3000, b'"', b"\\u")
            )
        elif kind == 2:
            del changed[at : at + chance.choice((1, 3, 40))]
        elif kind == 3:
            del changed[at:]
        elif kind == 4:
            changed[at:at] = changed[at : at + chance.choice((1, 20, 200))]
        elif at < len(changed):
            changed[at] = chance.randrange(256)
    return bytes(changed)


def damaged_json(chance: random.Random, value: Any) -> Any:
    """Replace, remove, rename or add a few values anywhere in a JSON value."""
    value = json.loads(json.dumps(value))
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            return deepcopy(chance.choice(ODD_VALUES))
        holder, key = chance.choice(places)
        kind = chance.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[chance.choice(("", "type", "id", "timestamp", "content", "\ud800", "x" * 300))] = (
                holder.pop(key)
            )
        elif kind == 2:
            holder[key] = [holder[key]]
        elif kind == 3:
            holder[key] = {"value": holder[key]}
        elif kind == 4 and isinstance(holder[key], str):
            text = holder[key]
            at = chance.randrange(len(text) + 1)
            holder[key] = text[:at] + chance.choice(("\0", "\ud83d", "9", "-", " ", "")) + text[at + 1 :]
        else:
            holder[key] = deepcopy(chance.choice(ODD_VALUES))
    return value


def damaged_line(chance: random.Random, line: bytes) -> bytes:
    """Damage one line of JSON; the result has no line break."""
    if chance.random() < 0.7:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            pass
        else:
            return json.dumps(damaged_json(chance, value)).encode()
    return damaged_bytes(chance, line).replace(b"\n", b" ")


def damaged_lines(chance: random.Random, data: bytes) -> bytes:
    """Damage a few lines of a file of JSON lines, or their order."""
    lines = data.splitlines()
    for _ in range(chance.choice((1, 1, 2, 3))):
        if not lines:
            break
        at = chance.randrange(len(lines))
        kind = chance.randrange(10)
        if kind == 0:
            lines.insert(chance.randrange(len(lines) + 1), lines[at])
        elif kind == 1:
            del lines[at]
        elif kind == 2:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines[at] = damaged_line(chance, lines[at])
    whole = b"\n".join(lines) + b"\n"
    return whole[: chance.randrange(len(whole))] if chance.random() < 0.05 else whole


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pending = [value]
    while pending:
        holder = pending.pop()
        if isinstance(holder, dict):
            for key in holder:
                yield holder, key
                pending.append(holder[key])
        elif isinstance(holder, list):
            for at in range(len(holder)):
                yield holder, at
                pending.append(holder[at])
