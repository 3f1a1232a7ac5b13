"""Storages of sandboxes on the command line: what ``--storage`` means, and how it is looked after.

Checkpoints are in the store unless ``--storage`` names a bucket, a folder or, as ``gateway``, the treering
server of the environment.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from treering.cli.console import progress, show, size

if TYPE_CHECKING:
    from treering.cli.options import StorePlace
    from treering.core.retention import Keep
    from treering.sandbox.config import StorageConfig
    from treering.sandbox.records import Forgotten, Pruned
    from treering.sandbox.storage import Depot

GATEWAY: Final = "gateway"

StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage", metavar="URL", help="Where checkpoints are: s3://bucket/prefix, a folder, or gateway."
    ),
]
EndpointOption = Annotated[str | None, typer.Option("--endpoint", metavar="URL", help="Of an S3 server.")]


def config_of(storage: str | None, endpoint: str | None) -> StorageConfig | None:
    """What the two options say; ``None`` when the store keeps the checkpoints."""
    from treering.errors import InvalidInput
    from treering.sandbox.config import StorageConfig

    if storage is None:
        if endpoint is not None:
            raise InvalidInput("--endpoint goes with --storage s3://bucket/prefix")
        return None
    return StorageConfig() if storage == GATEWAY else StorageConfig(storage, endpoint=endpoint)


@contextmanager
def opened(storage: str | None, endpoint: str | None, place: StorePlace) -> Generator[Depot]:
    """The checkpoints that are meant."""
    from treering.sandbox.storage import depot_in, opened_depot

    config = config_of(storage, endpoint)
    if config is not None:
        with opened_depot(config) as depot:
            yield depot
        return
    with place.existing() as store:
        yield depot_in(store)


def collect(
    config: StorageConfig,
    keep: Keep | None,
    *,
    per_session: bool,
    grace_seconds: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Drop checkpoints by policy, then free what only they needed."""
    from treering.sandbox.storage import opened_depot

    with opened_depot(config) as depot, progress("collecting"):
        forgotten = None
        if keep is not None:
            forgotten = depot.forget(keep=keep, per_session=per_session, dry_run=dry_run)
        would_go = forgotten.dropped if dry_run and forgotten is not None else ()
        pruned = depot.prune(
            grace_seconds=grace_seconds, dry_run=dry_run, as_if_without=[each.id for each in would_go]
        )
    lines = [] if forgotten is None else forgotten_lines(forgotten)
    show({"forgotten": forgotten, "pruned": pruned}, [*lines, *_pruned_lines(pruned)], as_json=as_json)


def forgotten_lines(done: Forgotten) -> list[str]:
    """What was dropped."""
    would = "would drop" if done.dry_run else "dropped"
    return [
        f"{would} {len(done.dropped):,} checkpoints, {done.kept:,} stay",
        *(f"  {each.id}  {each.timestamp[:19]}  {each.tag}" for each in done.dropped),
    ]


def _pruned_lines(done: Pruned) -> list[str]:
    would = "would " if done.dry_run else ""
    lines = [f"{would}delete {done.deleted:,} packs ({size(done.freed_bytes)})"]
    if done.waiting:
        lines.append(f"{would}condemn {done.waiting:,} packs ({size(done.waiting_bytes)}) for a later gc")
    if done.copied_bytes:
        lines.append(f"{would}copy {size(done.copied_bytes)} of them that are needed")
    return lines
