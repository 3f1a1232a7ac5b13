"""Fixtures that every test may use: real servers, and how hard Hypothesis tries.

A test asks for what it needs and gets an empty one of its own:

- `postgres_url`: a new PostgreSQL database with the tables of a store (`postgres_server` makes several),
- `empty_postgres_url`: one without any table, for those who make them,
- `redis_url`: an empty logical database of Valkey,
- `s3`: a new bucket of SeaweedFS, which honours conditional writes,
- `lossy_s3`: a new bucket of rclone's server, which ignores them,
- `store`: a new store, once on each engine.

A server starts when the first test of a run asks for it, is shared by all workers, and ends with the run.
A server that cannot be started fails its tests. `TREERING_TEST_SKIP=postgres,redis,s3,npm` leaves some out
on purpose, and the run says so at its end. The markers of the same names are set by the fixtures, so
`-m "not postgres"` works; a test that calls `request.getfixturevalue` sets its marker itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import treering
from tests.servers.bucket import S3Bucket
from tests.servers.fleet import Fleet
from tests.servers.npm import NpmFailed, fetch
from tests.servers.postgres import PostgresServer
from tests.servers.process import ServerFailed, ServerMissing
from tests.servers.rclone import RcloneServer
from tests.servers.seaweed import SeaweedServer
from tests.servers.valkey import ValkeyServer

_MARKERS = {
    "postgres_server": "postgres",
    "postgres_url": "postgres",
    "empty_postgres_url": "postgres",
    "redis_url": "redis",
    "s3": "s3",
    "lossy_s3": "s3",
    "npm": "npm",
}
_FLEET = pytest.StashKey[Fleet]()

# No deadline in any profile: how long an example takes says more about the machine than about the code.
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("long", parent=settings.get_profile("dev"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_configure(config: pytest.Config) -> None:
    os.environ["TZ"] = "UTC"  # what commands print as local time, whatever the machine
    time.tzset()
    if unknown := _skipped() - set(_MARKERS.values()):
        raise pytest.UsageError(
            f"TREERING_TEST_SKIP knows postgres, redis, s3 and npm, not {', '.join(unknown)}"
        )
    joined = getattr(config, "workerinput", {}).get("servers")
    config.stash[_FLEET] = Fleet.join(joined) if joined else Fleet.open()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["servers"] = str(node.config.stash[_FLEET].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _FLEET in config.stash:
        config.stash[_FLEET].close()


def pytest_itemcollected(item: pytest.Item) -> None:
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in _MARKERS:
            item.add_marker(_MARKERS[fixture])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if left_out := _skipped():
        terminalreporter.write_line(
            f"left out by TREERING_TEST_SKIP: {', '.join(sorted(left_out))}", yellow=True
        )


@pytest.fixture(scope="session")
def postgres_server(server: Callable[..., Any]) -> PostgresServer:
    """A PostgreSQL cluster: `create_database()` gives the URL of a new database each time."""
    return server(PostgresServer, kind="postgres", marker="postgres")


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a new PostgreSQL database with the tables of a store, dropped after the test."""
    url = postgres_server.create_store()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a new, empty PostgreSQL database, dropped after the test."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def redis_url(server: Callable[..., Any]) -> Iterator[str]:
    """The URL of an empty logical database of a server that speaks the Redis protocol."""
    valkey: ValkeyServer = server(ValkeyServer, kind="valkey", marker="redis")
    url = valkey.create_database()
    yield url
    valkey.empty_database(url)


@pytest.fixture
def s3(server: Callable[..., Any]) -> Iterator[S3Bucket]:
    """A new, empty bucket of an S3 server that honours conditional writes."""
    seaweed: SeaweedServer = server(SeaweedServer, kind="seaweed", marker="s3")
    bucket = seaweed.create_bucket()
    yield bucket
    seaweed.drop_bucket(bucket)


@pytest.fixture
def lossy_s3(server: Callable[..., Any]) -> Iterator[S3Bucket]:
    """A new, empty bucket of an S3 server that takes conditional writes and ignores the condition."""
    rclone: RcloneServer = server(RcloneServer, kind="rclone", marker="s3")
    bucket = rclone.create_bucket()
    yield bucket
    rclone.drop_bucket(bucket)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[treering.Store]:
    """A new store; the test runs once for each engine."""
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        opened = treering.open(request.getfixturevalue("postgres_url"))
    else:
        opened = treering.open(
            "memory:" if request.param == "memory" else tmp_path / "store", durability="fast"
        )
    with opened:
        yield opened


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Callable[..., Any]:
    """Reach a server of this run by its kind, or skip or fail the test that asks."""

    def reach(client: type, *, kind: str, marker: str) -> Any:
        if marker in _skipped():
            pytest.skip(f"TREERING_TEST_SKIP names {marker}")
        try:
            return client(**pytestconfig.stash[_FLEET].address(kind))
        except (ServerMissing, ServerFailed) as error:
            reason = f"{error} (or leave its tests out with TREERING_TEST_SKIP={marker})"
        pytest.fail(reason, pytrace=False)

    return reach


@pytest.fixture(scope="session")
def npm() -> Callable[[str, str], Path]:
    """Fetch a package and its version from npm: the folder ``node_modules`` that holds it."""

    def fetched(package: str, version: str) -> Path:
        if "npm" in _skipped():
            pytest.skip("TREERING_TEST_SKIP names npm")
        try:
            return fetch(package, version)
        except NpmFailed as error:
            reason = f"{error} (or leave its tests out with TREERING_TEST_SKIP=npm)"
        pytest.fail(reason, pytrace=False)

    return fetched


def _skipped() -> set[str]:
    return {name.strip() for name in os.environ.get("TREERING_TEST_SKIP", "").split(",") if name.strip()}
