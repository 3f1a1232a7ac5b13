"""Commands for the servers: serve, mcp, ui, keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from treering.cli.console import clean, limited, rows, say, show, when
from treering.cli.options import (
    Commands,
    JsonOption,
    LimitOption,
    StoreBlobsOption,
    StoreOption,
    StorePlace,
    takes_store,
)

if TYPE_CHECKING:
    from treering.server.auth import Keys, Scope


KEY_ENVIRONMENT: Final = "TREERING_API_KEY"
PORT: Final = 8787

keys = Commands(help="Manage the API keys of a store.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("mcp")(mcp)
    group = Commands(help="Record the calls of tools and models on their way.")
    group.command("mcp")(proxy_mcp)
    group.command("models")(proxy_models)
    app.add_typer(group, name="proxy")
    app.command("serve")(serve)
    app.add_typer(keys, name="keys")
    app.command("ui")(ui)


RerunsOption = Annotated[
    bool, typer.Option("--reruns", help="Let admins rerun runs, which executes agents' code here.")
]


@takes_store
def serve(
    *,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 8787,
    grpc_port: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=65535, help="Also ingest OTLP over gRPC, at this port (4317)."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", envvar=KEY_ENVIRONMENT, help="An additional admin key."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also answer to this host name (a proxy's)."),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where people open the dashboard, for links in alerts."),
    ] = None,
    reruns: RerunsOption = False,
    archive_after: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Archive days older than this (30d), in the background."),
    ] = None,
    search: Annotated[
        bool, typer.Option("--search/--no-search", help="Build the search index in the background.")
    ] = True,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="Processes that share the port.")
    ] = 1,
    legacy: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Reader for runs that the store does not hold."),
    ] = None,
    place: StorePlace,
) -> None:
    """Serve a store over HTTP, with the dashboard.

    REST, live streams, OTLP, and treering.open("https://...") from other machines. Without an API key it
    listens on this machine only.

    Examples:
        treering serve
        treering serve --host 0.0.0.0 --port 8787
        treering serve --grpc-port 4317
        treering serve --workers 4
    """
    with _extra("treering serve", "server"):
        from treering.server.serving import Worker, serve_workers
        from treering.server.serving import serve as run
        from treering.server.settings import Settings
    _refuse_empty_key(api_key)
    settings = Settings(
        host=host,
        port=port,
        grpc_port=grpc_port,
        project="default" if place.namespace is None else place.namespace,
        api_key=api_key,
        hosts=tuple(allow_host or ()),
        public_url=public_url,
        archive_after=archive_after,
        search=search,
        reruns=_store_environment(place) if reruns else None,
    )
    if reruns and workers > 1:
        from treering.errors import InvalidInput

        raise InvalidInput("--reruns needs one process, which knows its reruns; leave --workers out")
    worker = Worker.of_this_process()
    if workers > 1 and worker is None:
        _refuse_memory(place)
        command = [sys.executable, "-m", "treering", *sys.argv[1:]]
        raise typer.Exit(serve_workers(settings, workers=workers, command=command))

    def ready(address: str) -> None:
        if worker is None or worker.number == 0:
            processes = f" with {workers} processes" if workers > 1 else ""
            say(f"serving {opened.url}{processes} at {address}; stop with Ctrl-C")
        if worker is not None:
            worker.ready()

    opened = place.open()
    try:
        if legacy is not None:
            from treering.runs.listing import load_legacy

            opened.read_legacy(load_legacy(legacy))
        run(
            opened,
            settings if worker is None else worker.settings(settings),
            on_ready=ready,
            listening=None if worker is None else worker.listening,
            on_grpc_ready=lambda address: say(f"OTLP over gRPC at {address}"),
        )
    finally:
        opened.close()


@keys.command("create")
def create(
    *,
    scope: Annotated[str, typer.Option(metavar="SCOPE", help="read, write or admin.")] = "write",
    project: Annotated[
        str, typer.Option(metavar="NAME", help="Namespace of the store that the key opens.")
    ] = "default",
    name: Annotated[str, typer.Option(metavar="TEXT", help="A name for the key.")] = "",
    approver: Annotated[
        bool, typer.Option("--approver", help="It may answer questions of agents, as its name.")
    ] = False,
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and show it once.

    Examples:
        treering keys create --scope read --name dashboard
    """
    with _keys(store, store_blobs, create=True) as found:
        new = found.create(project=project, scope=cast("Scope", scope), name=name, approves=approver)
    say("save this key now: it is not stored and cannot be shown again")
    show(
        {"id": new.key.id, "key": new.token, "project": project, "scope": scope}, [new.token], as_json=as_json
    )


@keys.command("list")
def list_keys(
    *,
    limit: LimitOption = 100,
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List keys, without their secrets.

    Examples:
        treering keys list
    """
    from treering.core.clock import to_iso

    with _keys(store, store_blobs) as opened:
        found = limited(opened.list(), limit)
    plain = [
        {
            "id": each.id,
            "project": each.project,
            "scope": each.scope,
            "name": each.name,
            "approves": each.approves,
            "created_at": to_iso(each.created_at_us),
        }
        for each in found
    ]
    head = ["ID", "PROJECT", "SCOPE", "APPROVES", "CREATED", "NAME"]
    table = [
        [
            each.id,
            each.project,
            each.scope,
            "yes" if each.approves else "",
            when(to_iso(each.created_at_us)),
            clean(each.name),
        ]
        for each in found
    ]
    show(plain, rows([head, *table]) if table else ["no keys"], as_json=as_json)


@keys.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, from: treering keys list.")],
    *,
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key.

    Examples:
        treering keys revoke key_01k9
    """
    with _keys(store, store_blobs) as found:
        revoked = found.revoke(id)
    say("running servers reject it within seconds")
    show({"id": revoked, "revoked": True}, [f"revoked {revoked}"], as_json=as_json)


def _refuse_memory(place: StorePlace) -> None:
    from treering.api import locate
    from treering.errors import InvalidInput

    if locate(place.store).scheme == "memory":
        raise InvalidInput("a memory: store is of one process; leave out --workers")


def _refuse_empty_key(api_key: str | None) -> None:
    """Refuse a key that is set and empty: whoever sets it believes that the server asks for a key."""
    from treering.api import check_api_key

    if api_key is None and os.environ.get(KEY_ENVIRONMENT) == "":
        from treering.errors import InvalidInput

        raise InvalidInput(f"{KEY_ENVIRONMENT} is set, but empty; unset it, or set it to a key")
    if api_key is not None:
        check_api_key(api_key)


@contextmanager
def _keys(url: str | None, blobs: str | None, *, create: bool = False) -> Generator[Keys]:
    from treering.api import open as open_store
    from treering.api import open_existing
    from treering.server.auth import Keys

    with (open_store if create else open_existing)(url, blobs=blobs) as opened:
        yield Keys(opened.engine, clock=opened.clock)


@takes_store
def ui(
    *,
    port: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=65535, help="Port [8787, or a free one if it is in use]."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
    reruns: RerunsOption = False,
    place: StorePlace,
) -> None:
    """Open the dashboard of a store in the browser.

    It is for this machine only; treering serve serves the same to everyone with a key.

    Examples:
        treering ui
        treering ui --port 9000 --no-browser
        treering ui --reruns
    """
    from treering.errors import NotFound, Unreachable

    with _extra("treering ui", "server"):
        from treering.server.dashboard import is_built
        from treering.server.serving import serve
        from treering.server.settings import Settings
    if not is_built():
        raise NotFound(
            "this installation has no dashboard; reinstall treering without TREERING_NO_DASHBOARD, "
            "or run in a clone: python hatch_build.py"
        )

    def ready(address: str) -> None:
        say(f"dashboard of {opened.url}: {address}/ui/; stop with Ctrl-C")
        if browser:
            import webbrowser

            webbrowser.open(f"{address}/ui/")

    with place.existing() as opened:
        environment = _store_environment(place) if reruns else None

        def settings(port: int) -> Settings:
            return Settings(port=port, project=opened.space, reruns=environment)

        try:
            serve(opened, settings(PORT if port is None else port), on_ready=ready)
        except Unreachable:
            if port is not None:
                raise
            serve(opened, settings(0), on_ready=ready)


def _store_environment(place: StorePlace) -> dict[str, str]:
    """Return the environment in which a command finds the store."""
    given = {"TREERING_URL": place.store, "TREERING_BLOBS": place.store_blobs}
    return {name: str(value) for name, value in given.items() if value is not None}


@takes_store
def proxy_mcp(
    server: Annotated[
        list[str],
        typer.Argument(metavar="SERVER", help="The MCP server behind it: a command after --, or a URL."),
    ],
    *,
    thread: Annotated[
        str, typer.Option(metavar="THREAD", help="The thread that the calls belong to.")
    ] = "mcp",
    replay: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOOL=WORD",
            help="What to do with calls of a tool whose process died: safe, once or ask; may be repeated.",
        ),
    ] = None,
    place: StorePlace,
) -> None:
    """Make each tool call to an MCP server once, and record it.

    Examples:
        treering proxy mcp -- python bank_server.py
    """
    from treering.errors import InvalidInput

    with _extra("treering proxy mcp", "mcp"):
        from treering.mcp.proxy import EffectProxy, upstream_of
    import asyncio

    words: dict[str, Any] = {}
    for each in replay or ():
        tool, found, word = each.rpartition("=")
        if not found:
            raise InvalidInput(f"--replay {each!r} is invalid; give TOOL=safe, TOOL=once or TOOL=ask")
        words[tool] = word
    with place.open() as opened:
        effects = EffectProxy(opened, upstream_of(server), thread_id=thread, replay=words)
        asyncio.run(effects.serve_stdio())


@takes_store
def proxy_models(
    *,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 8788,
    openai: Annotated[
        str | None, typer.Option(metavar="URL", help="Where OpenAI's format goes [OPENAI_BASE_URL].")
    ] = None,
    anthropic: Annotated[
        str | None, typer.Option(metavar="URL", help="Where Anthropic's format goes [ANTHROPIC_BASE_URL].")
    ] = None,
    google: Annotated[
        str | None, typer.Option(metavar="URL", help="Where Gemini's format goes [GOOGLE_GEMINI_BASE_URL].")
    ] = None,
    place: StorePlace,
) -> None:
    """Pass calls of models on, and record them whole.

    For programs in any language that take the address of their provider. Stops with Ctrl-C.

    Examples:
        treering proxy models --port 8788
    """
    from treering.replays.proxy import ModelProxy

    given = {"openai": openai, "anthropic": anthropic, "google": google}
    with place.open() as opened:
        upstreams = {name: url for name, url in given.items() if url is not None}
        with ModelProxy(opened, upstreams=upstreams, host=host, port=port) as running:
            for name, value in running.environment().items():
                if name != "NO_PROXY":
                    typer.echo(f"export {name}={value}")
            say("recording; stop with Ctrl-C")
            running.wait()


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
    """Serve the store to MCP clients, on stdio or over HTTP.

    Examples:
        treering mcp
        treering mcp --http 127.0.0.1:8788
    """
    from treering.errors import InvalidInput

    if read_only and allow_destructive:
        raise InvalidInput("--read-only and --allow-destructive are mutually exclusive; omit one of them")
    with _extra("treering mcp", "mcp"):
        from treering.mcp.server import TreeringServer
    if http is not None:
        from treering.mcp.server import check_exposure, parse_address

        _refuse_empty_key(api_key)

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


@contextmanager
def _extra(what: str, extra: str) -> Generator[None]:
    """Say which extra to install if one of its modules is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        from treering.errors import MissingExtra

        if (error.name or "").partition(".")[0] == "treering":
            raise
        raise MissingExtra(what, extra) from error
