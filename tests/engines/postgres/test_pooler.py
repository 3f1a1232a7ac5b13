"""PgBouncer between treering and PostgreSQL: transaction mode works; what cannot work says what to set."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import treering
from tests.servers import ports
from treering.errors import TreeringError, Unsupported

INI = """
[databases]
{name} = host=127.0.0.1 port={port} dbname={name} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 3
ignore_startup_parameters = extra_float_digits
"""


@pytest.fixture
def pooled(postgres_url):
    """Start PgBouncer in front of a database of its own: a context manager that takes the mode."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed (Debian: apt install pgbouncer)")

    @contextmanager
    def start(mode):
        folder = Path(tempfile.mkdtemp(prefix="treering-pgbouncer-"))
        folder.chmod(0o755)  # it may run as somebody else
        (own,) = ports.free(1)
        parts = psycopg.conninfo.conninfo_to_dict(postgres_url)
        ini = INI.format(name=parts["dbname"], user=parts["user"], port=parts["port"], own=own, mode=mode)
        identity = {}
        if os.geteuid() == 0:  # it refuses to run as root, and reads its settings as whoever it runs as
            account = pwd.getpwnam("nobody")
            identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        (folder / "pgbouncer.ini").write_text(ini)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [program, folder / "pgbouncer.ini"], stdout=log, stderr=subprocess.STDOUT, **identity
            )
        url = f"postgresql://{parts['user']}@127.0.0.1:{own}/{parts['dbname']}"
        try:
            for _ in range(600):
                try:
                    psycopg.connect(url).close()
                    break
                except psycopg.OperationalError:
                    assert process.poll() is None, (folder / "log").read_text()
                    time.sleep(0.05)
            yield url
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(folder)

    return start


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_stores_share_connections_of_a_pooler(pooled, postgres_url, mode):
    with pooled(mode) as url:
        stores = [treering.open(url) for _ in range(3 if mode == "transaction" else 1)]

        def write(number):
            with stores[number % len(stores)].run(agent="a", thread=f"t{number % 4}") as run:
                run.message("user", f"message {number}")
            stores[number % len(stores)].thread(f"t{number % 4}").append(number, on_conflict="retry")

        with ThreadPoolExecutor(3 if mode == "transaction" else 1) as pool:
            list(pool.map(write, range(24)))
        assert stores[-1].engine.wait("default", 0, seconds=30) > 0
        assert stores[0].verify().ok
        seen = [item for name in range(4) for item in stores[-1].thread(f"t{name}").load().messages]
        assert sorted(item for item in seen if isinstance(item, int)) == list(range(24))
        for store in stores:
            store.close()
    with psycopg.connect(postgres_url) as direct:
        assert direct.execute("SHOW lock_timeout").fetchone() == ("0",), "nothing was set for others"


def test_a_follower_behind_a_pooler_sees_commits(pooled, postgres_url):
    with pooled("transaction") as url, treering.open(url) as store, treering.open(postgres_url) as other:
        last = other.commit(_note(other)).last_seq
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.engine.wait, "default", last, seconds=60)
            other.commit(_note(other))
            assert waiting.result() == last + 1


def test_statement_mode_is_refused_with_the_setting_to_change(pooled):
    with pooled("statement") as url:
        with pytest.raises(TreeringError) as caught:
            treering.open(url)
        assert isinstance(caught.value, Unsupported)
        assert "pool_mode = transaction" in str(caught.value)


def _note(store):
    draft = store.draft()
    draft.set_ref("note", b"x", scope="/state/x")
    return draft
