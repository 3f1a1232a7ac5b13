"""After power loss, everything that was acknowledged is there, and nothing is half there.

Real runs are recorded, and crashes of them simulated (`tests.faults.power`): a few hundred states here, ten
thousand and more in `make soak`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import treering
from tests.faults.loads import batch_of, fate, linking, load
from tests.faults.power import Call, compile_recorder, crashes, record
from treering.errors import TreeringError
from treering.sandbox import StorageConfig
from treering.sandbox.storage import open_storage
from treering.store import Store

Check = Callable[[list[str], Path], None]
Record = Callable[..., list[Call]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Return what a scenario does to its files; each is run once."""
    library = compile_recorder(tmp_path_factory.mktemp("recorder"))

    @cache
    def run(*scenario: str) -> list[Call]:
        return record(library, tmp_path_factory.mktemp("run"), *scenario)

    return run


def store_is_whole(promises: list[str], root: Path) -> None:
    """Every acknowledged commit is there, every other one is whole or absent, and everything is sound."""
    if "store" not in promises and not (root / "store").exists():
        return
    with treering.open(root / "store", durability="fast") as store:
        batches = [f"batch-w-{number}" for number in range(13)]
        batches += [f"linking-w-{number}-01" for number in range(4)]
        for batch in batches:
            found = fate(store.engine, batch_of(batch))
            assert found == "whole" or batch not in promises, f"{batch} is lost"
        for promise in promises:
            if promise.startswith("forgotten "):
                gone = linking(0, writer=promise.split()[1], thread=promise.split()[1].replace("v", "gone"))
                assert fate(store.engine, gone) == "absent"
        talk = store.thread("talk").get()
        said = [] if talk is None else [message["content"] for message in talk.messages]
        acknowledged = [promise for promise in promises if promise.startswith("message ")]
        assert said[: len(acknowledged)] == acknowledged
        assert store.verify().problems == ()


def repository_is_whole(promises: list[str], root: Path) -> None:
    """Every acknowledged checkpoint can be listed and restored, unless it was being dropped."""
    saved = {line.split()[1]: int(line.split()[2]) for line in promises if line.startswith("checkpoint ")}
    kept = list(saved)
    for line in promises:
        if line.startswith("dropping "):
            position = promises.index(line)
            before = [each.split()[1] for each in promises[:position] if each.startswith("checkpoint ")]
            kept = [each for each in kept if each not in before[:-2]]
    with open_storage(StorageConfig(root / "repository")) as storage:
        found = {info.id: info for info in storage.list()}
        assert not set(kept) - set(found), "checkpoints are lost"
        for info in found.values():
            assert storage.check(info).ok, info
        for each in kept:
            text = storage.cat(found[each], f"workspace/file{saved[each]}.txt")
            assert text == f"file {saved[each]}\n".encode() * 100


def backups_are_whole(promises: list[str], root: Path) -> None:
    """A backup with its final name is complete, acknowledged or not."""
    for number in range(3):
        target = root / f"backup{number}"
        if f"backup {number}" in promises:
            assert target.is_dir(), f"backup {number} is lost"
        if target.is_dir():
            with treering.open(target, durability="fast") as store:
                is_complete(store, number)


def is_complete(store: Store, number: int) -> None:
    for each in range(number + 1):
        assert fate(store.engine, load(each)) == "whole"
        assert fate(store.engine, linking(each)) == "whole"
    assert store.verify().problems == ()


SCENARIOS: dict[str, Check] = {
    "commits": store_is_whole,
    "packs": store_is_whole,
    "repository": repository_is_whole,
    "backups": backups_are_whole,
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_power_loss_takes_nothing_that_was_acknowledged(recorded: Record, scenario: str, tmp_path: Path):
    survives(recorded(scenario), SCENARIOS[scenario], 60, 1, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_much_power_loss_takes_nothing_that_was_acknowledged(
    recorded: Record, scenario: str, seed: int, tmp_path: Path
):
    survives(recorded(scenario), SCENARIOS[scenario], 700, 100 + seed, tmp_path)


def test_the_simulation_notices_commits_that_were_not_synced(recorded: Record, tmp_path: Path):
    """With durability ``fast``, power loss may take what was acknowledged last."""
    lost = 0
    for _, promises, root in crashes(recorded("commits", "fast"), 60, 1, tmp_path):
        try:
            store_is_whole(promises, root)
        except (AssertionError, TreeringError):
            lost += 1
    assert lost


def survives(calls: list[Call], check: Check, states: int, seed: int, work: Path) -> None:
    for point, promises, root in crashes(calls, states, seed, work):
        kept = work / "kept"
        shutil.copytree(root, kept)
        try:
            check(promises, root)
        except Exception as error:  # noqa: BLE001 - any failure, with the state that it belongs to
            pytest.fail(f"after call {point} of {len(calls)} (state in {kept}), {promises[-3:]}: {error!r}")
        shutil.rmtree(kept)
