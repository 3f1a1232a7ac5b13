"""``treering serve`` and the keys that it asks for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from treering.cli.console import clean, rows, say, show
from treering.cli.options import JsonOption, StoreBlobsOption, StoreOption, StorePlace, takes_store

if TYPE_CHECKING:
    from treering.server.auth import Keys, Scope


KEY_ENVIRONMENT = "TREERING_API_KEY"

keys = typer.Typer(
    help="API keys of a store: who may use its server.", no_args_is_help=True, rich_markup_mode=None
)


def add_to(app: typer.Typer) -> None:
    """Put the commands under the main one."""
    app.command("serve")(serve)
    app.add_typer(keys, name="keys")
    app.command("ui")(ui)


@takes_store
def serve(
    *,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Which port; 0 takes a free one.")
    ] = 8787,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", envvar=KEY_ENVIRONMENT, help="A key beside those of the store, for everything."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name under which a proxy on this machine is reached."),
    ] = None,
    search: Annotated[
        bool, typer.Option("--search/--no-search", help="Fill the search index in the background.")
    ] = True,
    legacy: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Who is asked for runs that the store does not have."),
    ] = None,
    place: StorePlace,
) -> None:
    """Serve a store over HTTP, with its dashboard.

    REST, live streams, OTLP and other machines' treering.open(). Listens on this machine only, unless there
    is an API key.
    """
    from treering.api import MissingExtra

    try:
        from treering.server.serving import serve as run
        from treering.server.settings import Settings
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"starlette", "uvicorn", "anyio"}:
            raise MissingExtra("treering serve", "server") from error
        raise
    opened = place.open()
    try:
        if legacy is not None:
            from treering.runs.directory import load_legacy

            opened.read_legacy(load_legacy(legacy))
        run(
            opened,
            Settings(
                host=host,
                port=port,
                project=opened.space,
                api_key=api_key,
                hosts=tuple(allow_host or ()),
                search=search,
            ),
            on_ready=lambda address: say(f"serving {opened.url} on {address}; stop with Ctrl-C"),
        )
    finally:
        opened.close()


@keys.command("create")
def create(
    *,
    scope: Annotated[str, typer.Option(metavar="SCOPE", help="read, write or admin.")] = "write",
    project: Annotated[
        str, typer.Option(metavar="NAME", help="Whose data: the namespace of the store.")
    ] = "default",
    name: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and show it this once."""
    with _keys(store, store_blobs) as made:
        new = made.create(project=project, scope=cast("Scope", scope), name=name)
    say("keep this key now: it is stored nowhere and cannot be shown again")
    show(
        {"id": new.key.id, "key": new.token, "project": project, "scope": scope}, [new.token], as_json=as_json
    )


@keys.command("list")
def list_keys(
    *, store: StoreOption = None, store_blobs: StoreBlobsOption = None, as_json: JsonOption = False
) -> None:
    """Show the keys, without their secrets."""
    from treering.core.clock import to_iso

    with _keys(store, store_blobs) as made:
        found = made.list()
    plain = [
        {
            "id": each.id,
            "project": each.project,
            "scope": each.scope,
            "name": each.name,
            "created_at": to_iso(each.created_at_us),
        }
        for each in found
    ]
    head = ["ID", "PROJECT", "SCOPE", "CREATED", "NAME"]
    table = [
        [each["id"], each["project"], each["scope"], each["created_at"], clean(each["name"])]
        for each in plain
    ]
    show(plain, rows([head, *table]) if table else ["no keys"], as_json=as_json)


@keys.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="As treering keys list shows it.")],
    *,
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a key back."""
    with _keys(store, store_blobs) as made:
        made.revoke(id)
    say("running servers turn it away within seconds")
    show({"id": id, "revoked": True}, [f"revoked {id}"], as_json=as_json)


@contextmanager
def _keys(url: str | None, blobs: str | None) -> Generator[Keys]:
    from treering.api import open as open_store
    from treering.server.auth import Keys

    with open_store(url, blobs=blobs) as found:
        yield Keys(found.engine, clock=found.clock)


# -----------------------------------------------------------------------------------------------------------
# ``treering ui``: the dashboard over a store, in the browser.


PORT: Final = 8787


@takes_store
def ui(
    *,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, max=65535, help="Which port [8787, or a free one if that is taken]."
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open it in the browser.")] = True,
    place: StorePlace,
) -> None:
    """Show a store in the browser: runs, threads, files, cost.

    It is for this machine only; treering serve shows the same to everyone who has a key.
    """
    from treering.errors import MissingExtra, NotFound, Unreachable

    try:
        from treering.server.dashboard import is_built
        from treering.server.serving import serve
        from treering.server.settings import Settings
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"starlette", "uvicorn", "anyio"}:
            raise MissingExtra("treering ui", "server") from error
        raise
    if not is_built():
        raise NotFound(
            "this installation has no dashboard; install treering without TREERING_NO_DASHBOARD, "
            "or in a clone run: python hatch_build.py"
        )

    def ready(address: str) -> None:
        say(f"{address}/ui/ shows {opened.url}; stop with Ctrl-C")
        if browser:
            import webbrowser

            webbrowser.open(f"{address}/ui/")

    with place.existing() as opened:
        settings = Settings(port=PORT if port is None else port, project=opened.space)
        try:
            serve(opened, settings, on_ready=ready)
        except Unreachable:
            if port is not None:
                raise
            serve(opened, Settings(port=0, project=opened.space), on_ready=ready)
