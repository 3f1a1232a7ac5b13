"""Commands that exchange threads with a team's server: ``treering push``, ``pull`` and ``remote``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from treering.cli.console import clean, counts, limited, rows, say, show, size, warn_of_secrets
from treering.cli.help import Commands
from treering.cli.options import JsonOption, LimitOption, StorePlace, UserNamespaceOption, takes_store
from treering.cli.progress import progress

if TYPE_CHECKING:
    from treering.importers.transfer import ThreadTransfer, TransferReport

AddressArgument = Annotated[
    str,
    typer.Argument(
        metavar="REMOTE://PROJECT[/THREAD]",
        help="A project of a remote and a thread, or the project alone for all threads.",
        show_default=False,
    ),
]
AllowSecretsOption = Annotated[
    bool, typer.Option("--allow-secrets", help="Send what looks like keys and passwords as well.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report what is new, and change nothing.")]

_remotes: Final = Commands(name="remote", help="Short names for servers, for push and pull.")


def add_to(app: typer.Typer) -> None:
    """Put the commands under the main one."""
    app.command()(push)
    app.command()(pull)
    app.add_typer(_remotes)


@takes_store
def push(
    address: AddressArgument,
    *,
    allow_secrets: AllowSecretsOption = False,
    dry_run: DryRunOption = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send threads to a server, with their files and runs.

    What is there already is not sent again. A push that was interrupted is finished by the next one.

    Examples:
        treering push team://support/alice
        treering push team://support --dry-run
    """
    from treering.importers.transfer import push as push_threads

    with place.existing() as opened, progress("pushing") as bar:
        report = push_threads(
            opened,
            address,
            namespace=user_namespace,
            allow_secrets=allow_secrets,
            dry_run=dry_run,
            on_progress=lambda now: bar.update(now.number, now.of_threads, bytes=now.bytes),
        )
    _tell(report, "would push" if dry_run else "pushed", as_json=as_json)


@takes_store
def pull(
    address: AddressArgument,
    *,
    allow_secrets: AllowSecretsOption = False,
    dry_run: DryRunOption = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Fetch threads from a server, with their files and runs.

    What is here already is not fetched again. A pull that was interrupted is finished by the next one.

    Examples:
        treering pull team://support/alice
        treering pull team://support
    """
    from treering.importers.transfer import pull as pull_threads

    with place.open() as opened, progress("pulling") as bar:
        report = pull_threads(
            opened,
            address,
            namespace=user_namespace,
            allow_secrets=allow_secrets,
            dry_run=dry_run,
            on_progress=lambda now: bar.update(now.number, now.of_threads, bytes=now.bytes),
        )
    _tell(report, "would pull" if dry_run else "pulled", as_json=as_json)


@_remotes.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The short name, such as team.", show_default=False)],
    url: Annotated[str, typer.Argument(help="The URL of the server.", show_default=False)],
    *,
    key_env: Annotated[
        str | None,
        typer.Option(
            "--key-env", metavar="VARIABLE", help="The variable with the key for it [TREERING_API_KEY]."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Name a server, or change where a name points to.

    Examples:
        treering remote add team https://agents.example
    """
    from treering.importers.remotes import add_remote

    remote = add_remote(name, url, key_env=key_env)
    show(remote, [f"{remote.name} is {remote.url}; its key comes from {remote.key_env}"], as_json=as_json)


@_remotes.command("list")
def list_remotes(*, limit: LimitOption = 100, as_json: JsonOption = False) -> None:
    """List the names of servers.

    Examples:
        treering remote list
    """
    from treering.importers.remotes import remotes

    found = limited(remotes(), limit)
    table = [("NAME", "URL", "KEY"), *((each.name, each.url, f"${each.key_env}") for each in found)]
    show(found, rows(table) if found else [], as_json=as_json)
    if not found and not as_json:
        say("no remotes; add one with: treering remote add team https://server")


@_remotes.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="The short name.", show_default=False)],
    *,
    as_json: JsonOption = False,
) -> None:
    """Forget the name of a server. The server is not touched.

    Examples:
        treering remote remove team
    """
    from treering.importers.remotes import remove_remote

    remote = remove_remote(name)
    show(remote, [f"removed {remote.name} ({remote.url})"], as_json=as_json)


def _tell(report: TransferReport, done: str, *, as_json: bool) -> None:
    lines = [f"{clean(each.thread)}: {_summary(each, done)}" for each in report.threads]
    show(report, lines, as_json=as_json)
    for each in report.threads:
        warn_of_secrets(each.secrets)
        if each.left_out:
            say(
                f"note: left out of {clean(each.thread)}, because their content is not of this thread: "
                f"{counts(each.left_out)}"
            )
    if not report.threads and not as_json:
        say("no threads")


def _summary(each: ThreadTransfer, done: str) -> str:
    if not each.is_new:
        return "the other side is ahead" if each.is_ahead else "nothing new"
    numbers = {
        "checkpoints": each.checkpoints,
        "runs": each.runs,
        "events": each.events,
        "objects of files": each.files,
    }
    return f"{done} {counts(numbers)}{f' ({size(each.bytes)})' if each.bytes else ''}"
