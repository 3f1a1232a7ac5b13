"""``treering mcp``: serve the store to Claude, IDEs and other clients of the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from treering.cli.console import say
from treering.cli.options import StorePlace, takes_store


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("mcp")(mcp)


@takes_store
def mcp(
    *,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve streamable HTTP there instead of stdio."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="TREERING_API_KEY",
            show_envvar=True,
            help="With --http: the bearer token that clients send; required unless the address is loopback.",
        ),
    ] = None,
    allow_destructive: Annotated[
        bool, typer.Option("--allow-destructive", help="Also offer tools that delete and cancel.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer only read-only tools.")] = False,
    semantic: Annotated[
        bool, typer.Option("--semantic", help="Search memory by meaning as well; needs the extra embeddings.")
    ] = False,
    reply_bytes: Annotated[
        int, typer.Option("--reply-bytes", metavar="N", help="Maximum size of a reply.")
    ] = 40_000,
    place: StorePlace,
) -> None:
    """Serve the store to MCP clients, on stdio or over HTTP."""
    from treering.errors import InvalidInput, MissingExtra

    if read_only and allow_destructive:
        raise InvalidInput("--read-only and --allow-destructive are mutually exclusive; omit one of them")
    try:
        from treering.mcp.server import TreeringServer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"mcp", "mcp_types"}:
            raise MissingExtra("treering mcp", "mcp") from error
        raise
    if http is not None:
        from treering.mcp.server import check_exposure, parse_address

        check_exposure(parse_address(http)[0], api_key)
    embedder = None
    if semantic:
        from treering.compat.memory import StaticEmbedder

        embedder = StaticEmbedder()
    with place.open() as opened:
        server = TreeringServer(
            opened,
            allow_destructive=allow_destructive,
            read_only=read_only,
            reply_bytes=reply_bytes,
            embedder=embedder,
        )
        if http is None:
            server.run("stdio")
            return
        from treering.mcp.server import serve_http

        serve_http(
            server,
            http,
            api_key=api_key,
            on_ready=lambda url: say(f"serving {opened.url} at {url}; stop with Ctrl-C"),
        )
    say("stopped")
