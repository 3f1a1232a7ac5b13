"""Google ADK's artifacts: what holds for the SDK's own services holds for ours, and contents are shared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

from tests.adapters.adk.talk import ENGINES, open_store
from treering.adapters.adk import TreeringArtifactService
from treering.store import Store

ALICE: dict[str, Any] = {"app_name": "shop", "user_id": "alice"}
HERE: dict[str, Any] = {**ALICE, "session_id": "s"}


@pytest.fixture(params=["ADK's in memory", *ENGINES])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseArtifactService]:
    if request.param == "ADK's in memory":
        yield InMemoryArtifactService()
    else:
        for store in open_store(request, tmp_path):
            yield TreeringArtifactService(store)
            assert store.verify().ok


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from open_store(request, tmp_path)


def text(content: str) -> types.Part:
    return types.Part(text=content)


def blob(data: bytes, mime_type: str = "image/png") -> types.Part:
    return types.Part.from_bytes(data=data, mime_type=mime_type)


class TestContract:
    def test_versions_are_numbered_and_kept(self, artifacts: BaseArtifactService) -> None:
        async def run() -> None:
            parts = [text("one"), blob(b"\0\xff" * 5000), text("caf\udce9"), text(""), blob(b"small")]
            for number, part in enumerate(parts):
                saved = await artifacts.save_artifact(**HERE, filename="f", artifact=part)
                assert saved == number
            for number, part in enumerate(parts):
                assert await artifacts.load_artifact(**HERE, filename="f", version=number) == part
            assert await artifacts.load_artifact(**HERE, filename="f") == parts[-1]
            assert await artifacts.list_versions(**HERE, filename="f") == [0, 1, 2, 3, 4]
            for version in (5, -1):
                assert await artifacts.load_artifact(**HERE, filename="f", version=version) is None
            assert await artifacts.load_artifact(**HERE, filename="g") is None
            assert await artifacts.list_versions(**HERE, filename="g") == []

        asyncio.run(run())

    def test_the_metadata_of_a_version(self, artifacts: BaseArtifactService) -> None:
        async def run() -> None:
            result = {"by": "hand", "n": [1]}
            await artifacts.save_artifact(**HERE, filename="f", artifact=blob(b"x"), custom_metadata=result)
            await artifacts.save_artifact(**HERE, filename="f", artifact={"text": "as a dict"})
            first, second = await artifacts.list_artifact_versions(**HERE, filename="f")
            assert (first.version, first.mime_type, first.custom_metadata) == (0, "image/png", result)
            assert (second.version, second.mime_type, second.custom_metadata) == (1, "text/plain", {})
            assert 0 < first.create_time <= second.create_time
            assert await artifacts.get_artifact_version(**HERE, filename="f", version=0) == first
            assert await artifacts.get_artifact_version(**HERE, filename="f") == second
            for version in (2, -1):
                assert await artifacts.get_artifact_version(**HERE, filename="f", version=version) is None
            assert await artifacts.get_artifact_version(**HERE, filename="g") is None
            assert await artifacts.list_artifact_versions(**HERE, filename="g") == []

        asyncio.run(run())

    def test_a_users_artifacts_are_in_all_sessions(self, artifacts: BaseArtifactService) -> None:
        async def run() -> None:
            await artifacts.save_artifact(**HERE, filename="user:photo", artifact=text("mine"))
            await artifacts.save_artifact(**HERE, filename="a/b.txt", artifact=text("here"))
            await artifacts.save_artifact(**ALICE, session_id="t", filename="c", artifact=text("there"))
            assert await artifacts.load_artifact(**ALICE, filename="user:photo") == text("mine")
            assert await artifacts.load_artifact(**ALICE, session_id="t", filename="a/b.txt") is None
            assert await artifacts.list_artifact_keys(**HERE) == ["a/b.txt", "user:photo"]
            assert await artifacts.list_artifact_keys(**ALICE) == ["user:photo"]
            assert await artifacts.list_artifact_keys(app_name="shop", user_id="bob") == []
            with pytest.raises(InputValidationError):
                await artifacts.save_artifact(**ALICE, filename="c", artifact=text("x"))

        asyncio.run(run())

    def test_a_deleted_artifact_begins_anew(self, artifacts: BaseArtifactService) -> None:
        async def run() -> None:
            for content in ("one", "two"):
                await artifacts.save_artifact(**HERE, filename="f", artifact=text(content))
            await artifacts.delete_artifact(**HERE, filename="f")
            await artifacts.delete_artifact(**HERE, filename="f")
            assert await artifacts.list_artifact_keys(**HERE) == []
            assert await artifacts.load_artifact(**HERE, filename="f", version=0) is None
            assert await artifacts.save_artifact(**HERE, filename="f", artifact=text("new")) == 0
            assert await artifacts.load_artifact(**HERE, filename="f") == text("new")

        asyncio.run(run())

    def test_a_reference_is_followed_within_its_owner(self, artifacts: BaseArtifactService) -> None:
        def reference(uri: str) -> types.Part:
            return types.Part(file_data=types.FileData(file_uri=uri, mime_type="text/plain"))

        async def run() -> None:
            await artifacts.save_artifact(**HERE, filename="f", artifact=text("target"))
            base = "artifact://apps/shop/users/alice/sessions/s/artifacts"
            await artifacts.save_artifact(**HERE, filename="r", artifact=reference(f"{base}/f/versions/0"))
            assert await artifacts.load_artifact(**HERE, filename="r") == text("target")
            await artifacts.save_artifact(
                **HERE, filename="loop", artifact=reference(f"{base}/loop/versions/0")
            )
            with pytest.raises(InputValidationError):
                await artifacts.load_artifact(**HERE, filename="loop")
            for wrong in ("artifact://nonsense", base.replace("alice", "bob") + "/f/versions/0"):
                with pytest.raises(InputValidationError):
                    await artifacts.save_artifact(**HERE, filename="w", artifact=reference(wrong))
            with pytest.raises(InputValidationError):
                await artifacts.save_artifact(**HERE, filename="w", artifact=types.Part())
            elsewhere = reference("gs://bucket/file")
            await artifacts.save_artifact(**HERE, filename="e", artifact=elsewhere)
            assert await artifacts.load_artifact(**HERE, filename="e") == elsewhere

        asyncio.run(run())

    def test_the_mark_of_a_rewind_is_no_artifact(self, artifacts: BaseArtifactService) -> None:
        async def run() -> None:
            await artifacts.save_artifact(**HERE, filename="f", artifact=text("one"))
            mark = blob(b"", "application/octet-stream")
            await artifacts.save_artifact(**HERE, filename="f", artifact=mark)
            assert await artifacts.load_artifact(**HERE, filename="f") is None
            assert await artifacts.load_artifact(**HERE, filename="f", version=0) == text("one")

        asyncio.run(run())

    def test_many_saves_at_once_get_a_number_each(self, artifacts: BaseArtifactService) -> None:
        async def run() -> None:
            parts = [text(str(number)) for number in range(8)]
            numbers = await asyncio.gather(
                *(artifacts.save_artifact(**HERE, filename="f", artifact=part) for part in parts)
            )
            assert sorted(numbers) == list(range(8))
            for number, part in zip(numbers, parts, strict=True):
                assert await artifacts.load_artifact(**HERE, filename="f", version=number) == part

        asyncio.run(run())


class TestOnAStore:
    def test_equal_contents_are_stored_once(self, store: Store) -> None:
        async def run() -> None:
            artifacts = TreeringArtifactService(store)
            for name in ("f", "g", "user:h"):
                for _ in range(3):
                    await artifacts.save_artifact(**HERE, filename=name, artifact=blob(b"ring" * 5000))

        asyncio.run(run())
        assert store.stats().rows["objects"] == 1

    def test_namespaces_do_not_see_each_other(self, store: Store) -> None:
        async def run() -> None:
            one, two = (TreeringArtifactService(store, namespace=each) for each in ("one", "two"))
            await one.save_artifact(**HERE, filename="f", artifact=text("secret"))
            assert await two.load_artifact(**HERE, filename="f") is None
            assert await two.list_artifact_keys(**HERE) == []

        asyncio.run(run())

    def test_another_process_finds_it(self, tmp_path: Path) -> None:
        async def write() -> None:
            async with TreeringArtifactService(tmp_path) as artifacts:
                await artifacts.save_artifact(**HERE, filename="ä" * 300, artifact=text("kept"))

        async def read() -> list[str]:
            async with TreeringArtifactService(tmp_path) as artifacts:
                assert await artifacts.load_artifact(**HERE, filename="ä" * 300) == text("kept")
                return await artifacts.list_artifact_keys(**HERE)

        asyncio.run(write())
        assert asyncio.run(read()) == ["ä" * 300]
