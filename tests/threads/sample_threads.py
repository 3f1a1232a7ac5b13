"""Sample threads, for tests that read or damage them."""

from __future__ import annotations

import sqlite3


def say(text):
    return {"role": "user", "content": text}


def sample_thread(store, thread_id="t", steps=5):
    thread = store.thread(thread_id)
    for step in range(steps):
        thread.append(
            say(f"message {step}"),
            state={"count": step},
            metadata={"even": step % 2 == 0},
            tags=("third",) if step % 3 == 0 else (),
        )
    return thread


def steps(checkpoints):
    return [checkpoint.step for checkpoint in checkpoints]


def damage(folder, statement):
    connection = sqlite3.connect(folder / "treering.db")
    with connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()
