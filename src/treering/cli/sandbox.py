"""Commands for sandboxes: ``treering run``, ``treering checkpoints`` and ``treering output``.

Checkpoints are kept in the store, next to the timeline of the run, unless ``--storage`` names a bucket, a
folder or, as ``gateway``, the treering server of the environment. The program's output is passed through, and
its exit code is the exit code of the command.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from treering.cli.console import clean, counted, limited, rows, say, show, size, when
from treering.cli.options import (
    JsonOption,
    LimitOption,
    StorePlace,
    takes_store,
)

if TYPE_CHECKING:
    from treering.sandbox.sandbox import RunResult
    from treering.sandbox.storage import CheckpointStorage, StorageConfig

_SIGNALLED: Final = 128
_GATEWAY: Final = "gateway"

StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Where checkpoints are kept: s3://bucket/prefix, a folder, or gateway.",
    ),
]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="Endpoint of an S3-compatible server.")
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (run, checkpoints, output):
        app.command()(command)


@takes_store
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Command to run, after --.")
    ] = None,
    *,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Agent profile [by the command].")] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Prompt for the agent, instead of a command.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model, with --prompt.")] = None,
    workspace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to work in, which is kept [a new one].")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="ID", help="Start from a checkpoint, or latest.")
    ] = None,
    comment: Annotated[str | None, typer.Option(metavar="TEXT", help="Comment of the checkpoint.")] = None,
    mode: Annotated[str, typer.Option(metavar="MODE", help="knowledge or swe.")] = "knowledge",
    tag_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Prefix of the session's tag.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]",
            help="Set a variable, or pass those of this shell on by name or pattern (AWS_*); repeatable.",
        ),
    ] = None,
    always_checkpoint: Annotated[
        bool, typer.Option("--always-checkpoint", help="Take a checkpoint even if the program fails.")
    ] = False,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="Keep every call of its models, to run it again with treering rerun; no checkpoint.",
        ),
    ] = False,
    keep_sandbox: Annotated[bool, typer.Option("--keep-sandbox", help="Do not remove the sandbox.")] = False,
    storage: StorageOption = None,
    endpoint: EndpointOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Run a CLI agent in a home of its own, and take a checkpoint.

    Any other program works as well.

    Examples:
        treering run -- python job.py
        treering run --agent claude --prompt "Fix the tests" --workspace .
        treering run --from latest -- ./continue.sh
    """
    from msgspec.structs import replace

    from treering.errors import InvalidInput
    from treering.sandbox.sandbox import CheckpointWarning, Sandbox

    if (prompt is None) == (not command):
        raise InvalidInput("pass either a command after --, or --agent and --prompt")
    if record:
        if any((from_, comment, keep_sandbox, storage, tag_prefix)):
            raise InvalidInput(
                "--record takes no checkpoint: leave out --from, --comment, --storage and the like"
            )
        _record(
            place,
            command,
            agent=agent,
            prompt=prompt,
            model=model,
            workspace=workspace,
            env=env or [],
            as_json=as_json,
        )
        return
    with place.open() as store, warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # the result has it, and it is printed below
        sandbox = Sandbox(
            agent or _profile_of(command) or ("claude" if prompt is not None else "program"),
            model=model,
            workspace_mode=mode,  # pyright: ignore[reportArgumentType] - checked there
            storage=config_of(storage, endpoint),
            session_tag_prefix=tag_prefix,
            store=store,
            workspace=workspace,
            env=dict(each.split("=", 1) for each in env or () if "=" in each),
            pass_env=[each for each in env or () if "=" not in each],
            on_output=None if as_json else _pass_on,
        )
        try:
            if prompt is not None:
                done = sandbox.run(prompt, from_=from_, checkpoint_comment=comment)
            else:
                done = sandbox.execute(command or [], from_=from_, checkpoint_comment=comment)
            if done.exit_code and always_checkpoint:
                kept = sandbox.checkpoint(comment=comment or f"exit code {done.exit_code}")
                done = replace(done, checkpoint=kept)
            if as_json:
                show(done, (), as_json=True)
            else:
                _print_result(done)
            if keep_sandbox:
                say(f"sandbox {done.sandbox_id} is kept, with its files in {sandbox.workspace}")
            elif done.checkpoint is None and done.exit_code:
                say(_what_became_of_files(done.exit_code, workspace))
        finally:
            if not keep_sandbox:
                sandbox.kill()
            sandbox.close()
    code = done.exit_code or 0
    raise typer.Exit(code if code >= 0 else _SIGNALLED - code)


def _record(
    place: StorePlace,
    command: list[str] | None,
    *,
    agent: str | None,
    prompt: str | None,
    model: str | None,
    workspace: Path | None,
    env: list[str],
    as_json: bool,
) -> None:
    from treering.replays.commands import record_command

    with place.open() as store:
        made, result = record_command(
            store,
            command=command or (),
            prompt=prompt,
            agent=agent or _profile_of(command) or ("claude" if prompt is not None else "program"),
            model=model,
            workspace=workspace,
            env=dict(each.split("=", 1) for each in env if "=" in each),
            pass_env=[each for each in env if "=" not in each],
            on_output=None if as_json else _pass_on,
        )
        if as_json:
            show({"run": made.id, "exit_code": result.exit_code, "output": result.output}, (), as_json=True)
        else:
            say(f"recorded as run {made.id}")
    code = result.exit_code or 0
    raise typer.Exit(code if code >= 0 else _SIGNALLED - code)


@takes_store
def output(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Id of a checkpoint, or latest.")
    ] = "latest",
    *,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write the files into this folder.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    limit: LimitOption = 100,
    storage: StorageOption = None,
    endpoint: EndpointOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """List or download what an agent left in its output folder.

    The result names the session's tag and sandbox, as its log does.

    Examples:
        treering output
        treering output latest --to ./results
    """
    with open_checkpoints(storage, endpoint, place) as opened:
        info = opened.find(checkpoint)
        found = opened.output(info)
        if to is not None:
            opened.download_output(info, to, overwrite=overwrite)
    table = [
        ("file", "size"),
        *((clean(each.path), size(each.size_bytes)) for each in limited(found.files, limit)),
    ]
    lines = rows(table) if found.files else ["no files"]
    session = f"session {found.tag or ''}, sandbox {found.sandbox_id or 'unknown'}, checkpoint {info.id}"
    show(found, [clean(session), *lines], as_json=as_json)


@takes_store
def checkpoints(
    *,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="Filter by session.")] = None,
    limit: LimitOption = 50,
    storage: StorageOption = None,
    endpoint: EndpointOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of sandboxes, newest first.

    Examples:
        treering checkpoints
        treering checkpoints --storage s3://bucket/agents --limit 5
    """
    from treering.core.ids import short_ids
    from treering.sandbox.storage import MAX_LIMIT

    with open_checkpoints(storage, endpoint, place) as opened:
        found = limited(opened.list(limit=min(limit + 1, MAX_LIMIT) if limit else MAX_LIMIT, tag=tag), limit)
    ids = short_ids(name for each in found for name in (each.id, each.parent_id) if name)
    table = [("id", "taken", "files", "size", "agent", "parent", "comment")]
    table += [
        (
            ids[each.id],
            when(each.timestamp),
            f"{each.files or 0:,}",
            size(each.size_bytes or 0),
            each.agent_type or "",
            ids.get(each.parent_id or "", ""),
            clean(each.comment or ""),
        )
        for each in found
    ]
    show(found, rows(table) if found else ["no checkpoints"], as_json=as_json)


def config_of(storage: str | None, endpoint: str | None) -> StorageConfig | None:
    """Return the configuration of ``--storage``; ``None`` if the store keeps the checkpoints."""
    from treering.errors import InvalidInput
    from treering.sandbox.storage import StorageConfig

    if storage is None:
        if endpoint is not None:
            raise InvalidInput("--endpoint requires --storage s3://bucket/prefix")
        return None
    return StorageConfig() if storage == _GATEWAY else StorageConfig(storage, endpoint=endpoint)


@contextmanager
def open_checkpoints(
    storage: str | None, endpoint: str | None, place: StorePlace
) -> Generator[CheckpointStorage]:
    """Open the storage that holds the checkpoints: the one given, or the store."""
    from treering.sandbox.storage import open_storage, storage_in

    config = config_of(storage, endpoint)
    if config is not None:
        with open_storage(config) as opened:
            yield opened
        return
    with place.existing() as store:
        yield storage_in(store)


def _profile_of(command: list[str] | None) -> str | None:
    """Return the agent profile for a command, if there is one."""
    from treering.sandbox.profiles import profiles

    name = Path(command[0]).name if command else ""
    return name if name in profiles() else None


def _pass_on(source: str, line: bytes) -> None:
    stream = sys.stdout.buffer if source == "stdout" else sys.stderr.buffer
    stream.write(line)
    stream.flush()


def _what_became_of_files(exit_code: int, workspace: Path | None) -> str:
    where = "its files are removed" if workspace is None else f"its files stay in {workspace}"
    return (
        f"exit code {exit_code}: no checkpoint was taken, and {where}. "
        "To keep them next time: --always-checkpoint, or --keep-sandbox"
    )


def _print_result(done: RunResult) -> None:
    if done.warning is not None:
        say(f"warning: {done.warning}")
    if done.checkpoint is not None:
        kept = done.checkpoint
        say(f"checkpoint {kept.id} ({counted(kept.files or 0, 'files')}, {size(kept.size_bytes or 0)})")
