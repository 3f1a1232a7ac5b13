"""Opening a store: which URL means what, and what the rest is told."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import treering
from treering import errors
from treering.api import StoreLocation, locate, migrate, open_existing, probe, redacted

SECRET = "hunter2"  # not anybody's
HEAVY = {"sqlalchemy", "alembic", "sqlmodel", "pydantic", "psycopg", "obstore", "typer", "rich", "asyncio"}


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
    )
    return done.stdout


@contextlib.contextmanager
def as_nobody_if_root() -> Iterator[None]:
    """Root may write anywhere, so root becomes nobody for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def with_one_commit(store: treering.Store) -> None:
    with store:
        draft = store.draft()
        draft.set_ref("n", b"1", scope="/store/test")
        store.commit(draft)


class TestLocate:
    @pytest.mark.parametrize(
        "url, folder",
        [
            ("store", "store"),
            ("./store", "store"),
            ("sqlite:///store", "store"),
            ("SQLITE:///store", "store"),
            ("./a:b", "a:b"),
            ("🌲 naïve", "🌲 naïve"),
            ("sqlite:////srv/store", "/srv/store"),
            ("/srv/store", "/srv/store"),
            (Path("store"), "store"),
        ],
    )
    def test_a_local_store_is_a_folder(
        self, url: str | Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert locate(url).folder == tmp_path / folder

    def test_a_home_folder_is_understood(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert locate("~/agents").folder == tmp_path / "agents"

    def test_without_a_url_the_environment_decides(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("TREERING_URL", raising=False)
        assert locate(None).folder == tmp_path / ".treering"
        monkeypatch.setenv("TREERING_URL", "elsewhere")
        assert locate(None).folder == tmp_path / "elsewhere"
        monkeypatch.setenv("TREERING_URL", "")
        assert locate(None).folder == tmp_path / ".treering"

    @pytest.mark.parametrize(
        "url", ["postgresql://db/agents", "postgres://db/agents", "memory:", "memory://"]
    )
    def test_other_stores_go_by_their_scheme(self, url: str) -> None:
        assert locate(url) == StoreLocation(scheme=url.partition(":")[0], url=url)

    @pytest.mark.parametrize(
        "url",
        [
            "mysql://db/agents",
            "redis://localhost",
            "sqlite://",
            "sqlite:///",
            "sqlite://host/path",
            "sqlite:store",
            "postgresql:agents",
            "nonsense:",
            "",
            "  ",
            "a\0b",
            Path("a\0b"),
            "x" * 10_000,
            "~nobody-is-called-this/x",
        ],
    )
    def test_anything_else_is_refused_with_what_is_accepted(self, url: str | Path) -> None:
        with pytest.raises(errors.InvalidInput) as caught:
            treering.open(url)
        assert len(str(caught.value)) < 600
        assert "use a folder (./.treering)" in str(caught.value) or "cannot be a store" in str(caught.value)

    def test_something_that_is_no_url_at_all(self) -> None:
        with pytest.raises(errors.InvalidInput):
            treering.open(42)  # type: ignore[arg-type]

    def test_a_file_is_not_a_store(self, tmp_path: Path) -> None:
        (tmp_path / "agents.db").touch()
        with pytest.raises(errors.InvalidInput, match="is a file"):
            treering.open(tmp_path / "agents.db")


class TestSecrets:
    @pytest.mark.parametrize(
        "url, shown",
        [
            (f"postgresql://me:{SECRET}@db/agents", "postgresql://me:***@db/agents"),
            (f"postgresql://me:{SECRET}@x@db/agents", "postgresql://me:***@db/agents"),
            (f"postgresql://me:a/{SECRET}@db/agents", "postgresql://me:***@db/agents"),
            (f"postgresql://db/agents?password={SECRET}&x=1", "postgresql://db/agents?password=***&x=1"),
            (f"s3://b?secret_access_key={SECRET}", "s3://b?secret_access_key=***"),
            (f"postgresql://me:a?{SECRET}@db/agents?x=1", "postgresql://me:***@db/agents?x=1"),
            (f"postgresql://me:1234?{SECRET}@db/agents", "postgresql://me:***@db/agents"),
            (f"postgresql://me:a#?{SECRET}@b@db/agents", "postgresql://me:***@db/agents"),
            (f"postgresql://me:a@{SECRET}?b@db:5432/agents", "postgresql://me:***@db:5432/agents"),
            (f"postgresql://:?{SECRET}@db/agents", "postgresql://:***@db/agents"),
            (f"host=db user=me password={SECRET} port=1", "host=db user=me password=*** port=1"),
            (f"host=db password = 'a {SECRET}' port=1", "host=db password = *** port=1"),
            ("http://host:8787/ui/?x=1", "http://host:8787/ui/?x=1"),
            ("postgresql://me@db/agents", "postgresql://me@db/agents"),
            ("folder", "folder"),
        ],
    )
    def test_urls_are_shown_without_secrets(self, url: str, shown: str) -> None:
        assert redacted(url) == shown

    def test_no_message_shows_a_password(self) -> None:
        for url in (f"mysql://me:{SECRET}@db/x", f"https://me:{SECRET}@host/x"):
            with pytest.raises(errors.TreeringError) as caught:
                treering.open(url)
            assert SECRET not in str(caught.value)

    @pytest.mark.postgres
    def test_an_unreachable_server_is_named_without_its_password(self) -> None:
        with pytest.raises(errors.Unreachable) as caught:
            treering.open(f"postgresql://me:{SECRET}@127.0.0.1:9/agents?connect_timeout=2")
        assert "127.0.0.1" in str(caught.value)
        assert SECRET not in str(caught.value)


class TestOpen:
    def test_a_folder_is_made_and_opened_again(self, tmp_path: Path) -> None:
        for expected in (1, 2):
            with treering.open(tmp_path / "deep" / "store") as store:
                draft = store.draft()
                draft.set_ref("opened", b"x", scope="/store/test")
                assert store.commit(draft).versions == {"opened": expected}
        assert probe(locate(tmp_path / "deep" / "store")).exists

    def test_every_memory_store_is_a_new_one(self) -> None:
        with treering.open("memory:") as one, treering.open("memory:") as two:
            assert one.engine is not two.engine

    def test_the_namespace_is_the_space(self) -> None:
        with treering.open("memory:") as store:
            assert store.space == "default"
            assert "default" in repr(store)
        with treering.open("memory:", namespace="team-a") as store:
            assert store.space == "team-a"

    @pytest.mark.parametrize("namespace", ["", "a/b", ".hidden", "x" * 200, "a\0b", "🌲", "treering.copy"])
    def test_a_namespace_must_be_a_plain_name(self, namespace: str) -> None:
        with pytest.raises(errors.InvalidInput):
            treering.open("memory:", namespace=namespace)

    def test_durability_is_one_of_two(self, tmp_path: Path) -> None:
        treering.open(tmp_path / "fast", durability="fast").close()
        with pytest.raises(errors.InvalidInput, match="'full' or 'fast'"):
            treering.open("memory:", durability="slow")  # type: ignore[arg-type]

    def test_a_key_is_not_sent_in_the_clear(self) -> None:
        with pytest.raises(errors.InvalidInput, match="https") as caught:
            treering.open("http://agents.example.org", api_key=SECRET)
        assert SECRET not in str(caught.value)

    def test_blobs_of_a_server_are_its_own(self) -> None:
        with pytest.raises(errors.InvalidInput, match="leave blobs out"):
            treering.open("https://agents.example.org", blobs="s3://bucket")

    def test_an_api_key_goes_with_a_server(self) -> None:
        with pytest.raises(errors.InvalidInput, match="api_key"):
            treering.open("memory:", api_key=SECRET)

    def test_blobs_of_a_folder_or_a_bucket(self, tmp_path: Path) -> None:
        with treering.open(tmp_path / "store", blobs=(tmp_path / "packs").as_uri()) as store:
            assert store.verify().ok
        with pytest.raises(errors.InvalidInput, match="leave blobs out"):
            treering.open("memory:", blobs="s3://bucket")
        with pytest.raises(errors.InvalidInput):
            treering.open(tmp_path / "store", blobs="ftp://host/packs")

    def test_a_read_only_folder_is_a_clear_error(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o555)
            with as_nobody_if_root(), pytest.raises(errors.ReadOnly, match=folder):
                treering.open(Path(folder) / "store")

    def test_a_store_in_a_read_only_folder_is_a_clear_error(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            treering.open(folder).close()
            for path in (Path(folder), *Path(folder).iterdir()):
                path.chmod(0o555 if path.is_dir() else 0o444)
            with as_nobody_if_root(), pytest.raises(errors.ReadOnly, match=folder):
                with_one_commit(treering.open(folder))
            Path(folder).chmod(0o700)

    def test_a_folder_below_a_file_is_a_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises((errors.Unreachable, errors.InvalidInput, errors.ReadOnly), match="file"):
            treering.open(tmp_path / "file" / "store")

    def test_a_missing_driver_names_its_extra(self) -> None:
        code = """
import sys
sys.modules["psycopg"] = None
import treering
try:
    treering.open("postgresql://db/agents")
except treering.errors.MissingExtra as error:
    print(error, error.exit_code)
"""
        assert "pip install 'treering[postgres]'" in run_python(code)

    def test_what_must_be_there_is_not_made(self, tmp_path: Path) -> None:
        with pytest.raises(errors.NotFound, match="--store"):
            open_existing(tmp_path / "store")
        assert not (tmp_path / "store").exists()
        treering.open(tmp_path / "store").close()
        open_existing(tmp_path / "store").close()

    def test_what_must_be_there_is_not_made_in_a_database_either(self, empty_postgres_url: str) -> None:
        with pytest.raises(errors.NotFound, match="no store found in postgresql://"):
            open_existing(empty_postgres_url)
        assert not probe(locate(empty_postgres_url)).exists
        treering.open(empty_postgres_url).close()
        open_existing(empty_postgres_url).close()
        assert migrate(empty_postgres_url).before == migrate(empty_postgres_url).after

    def test_a_damaged_database_is_there_and_says_what_is_wrong(self, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "treering.db").write_bytes(b"not a database, but long enough" * 100)
        assert probe(locate(tmp_path / "store")).exists
        with pytest.raises(errors.TreeringError, match=r"treering\.db"):
            open_existing(tmp_path / "store")


class TestImport:
    def test_the_public_names_are_there(self) -> None:
        assert set(treering.__all__) <= set(dir(treering))
        for name in treering.__all__:
            assert getattr(treering, name) is not None
        assert issubclass(treering.errors.NotFound, treering.errors.TreeringError)
        with pytest.raises(AttributeError, match="nothing_like_this"):
            _ = treering.nothing_like_this

    def test_importing_loads_next_to_nothing(self) -> None:
        loaded = run_python("import sys, treering; print(*sys.modules)").split()
        assert HEAVY.isdisjoint(loaded)
        assert {"sqlite3", "msgspec", "orjson", "treering.api"}.isdisjoint(loaded)

    def test_opening_a_local_store_loads_no_orm_and_no_framework(self, tmp_path: Path) -> None:
        folder = str(tmp_path / "store")
        code = f"import sys, treering; treering.open({folder!r}).close(); print(*sys.modules)"
        assert HEAVY.isdisjoint(run_python(code).split())

    def test_every_error_says_what_it_means_for_a_caller(self) -> None:
        shown = {
            name: (each.http_status, each.exit_code, each.retryable)
            for name, each in vars(errors).items()
            if isinstance(each, type) and issubclass(each, errors.TreeringError)
        }
        assert json.dumps(shown)
        assert all(status >= 400 and code > 0 for status, code, _ in shown.values())


class TestNearestStore:
    """Without an address, a program uses the store of its folder, or of the nearest one above."""

    @pytest.fixture(autouse=True)
    def _in_a_project(self, tmp_path, monkeypatch):
        monkeypatch.delenv("TREERING_URL", raising=False)
        self.project = tmp_path / "project"
        (self.project / "src" / "deep").mkdir(parents=True)
        monkeypatch.chdir(self.project / "src" / "deep")

    def test_the_nearest_one_above_is_used(self):
        treering.open(self.project / ".treering").close()
        assert locate(None).folder == self.project / ".treering"
        with treering.open() as store:
            store.thread("t").append("Hi.")
        assert not (self.project / "src" / "deep" / ".treering").exists()
        treering.open(self.project / "src" / ".treering").close()
        assert locate(None).folder == self.project / "src" / ".treering"

    def test_without_one_it_is_created_here(self):
        here = self.project / "src" / "deep" / ".treering"
        assert locate(None).folder == here
        with treering.open():
            assert (here / "treering.db").is_file()

    def test_a_folder_without_a_database_is_not_a_store(self):
        (self.project / ".treering").mkdir()
        (self.project / ".treering" / "hooks.log").write_text("as in a home folder")
        assert locate(None).folder == self.project / "src" / "deep" / ".treering"

    def test_a_store_that_lost_its_database_is_not_passed_over(self):
        treering.open(self.project / ".treering").close()
        for each in (self.project / ".treering").glob("treering.db*"):
            each.unlink()
        assert locate(None).folder == self.project / ".treering"

    def test_the_environment_and_an_argument_come_first(self, monkeypatch):
        treering.open(self.project / ".treering").close()
        monkeypatch.setenv("TREERING_URL", str(self.project / "other"))
        assert locate(None).folder == self.project / "other"
        assert locate("named").folder == self.project / "src" / "deep" / "named"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
    def test_one_above_that_belongs_to_another_user_is_passed_over(self, monkeypatch):
        treering.open(self.project / ".treering").close()
        os.chown(self.project / ".treering", 65534, 65534)
        assert locate(None).folder == self.project / "src" / "deep" / ".treering"
        monkeypatch.chdir(self.project)
        assert locate(None).folder == self.project / ".treering"

    def test_looking_for_it_does_not_disturb_a_store_that_is_open(self):
        """Opening and closing its database once more in this process would drop the locks on it."""
        with treering.open() as one, treering.open() as other:
            one.thread("t").append("one")
            locate(None)
            other.thread("t").append("two")
            assert one.verify().ok
            assert [m["content"] if isinstance(m, dict) else m for m in one.thread("t").load().messages] == [
                "one",
                "two",
            ]
