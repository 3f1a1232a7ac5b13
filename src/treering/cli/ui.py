"""``treering ui``: the dashboard over a store, in the browser."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from treering.cli.console import say
from treering.cli.options import StorePlace, takes_store

PORT: Final = 8787


def add_to(app: typer.Typer) -> None:
    """Put the command under the main one."""
    app.command("ui")(ui)


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
