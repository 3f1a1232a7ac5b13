"""The dashboard: the built files of `web/`, handed out below ``/ui/``.

The files are few, so they are read once and kept, compressed where that helps. **Invariant:** what can be
asked for is the list of files that were built; no part of a request ever becomes a path. Pages may load only
what lies beside them, and no script that is not a file.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from treering.server.http import plain

STATIC: Final = Path(__file__).parent / "static"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_INDEX: Final = "index.html"
_ASSETS: Final = "assets/"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_PACKED: Final = frozenset({".css", ".html", ".js", ".svg"})


class _File(msgspec.Struct, frozen=True, kw_only=True):
    data: bytes
    packed: bytes | None
    type: str


def routes() -> Sequence[Route]:
    """``/ui/`` and the files below it; ``/`` leads there."""
    return (
        Route("/", _enter, methods=["GET"], include_in_schema=False),
        Route("/ui", _enter, methods=["GET"], include_in_schema=False),
        Route("/ui/{name:path}", _serve, methods=["GET"], include_in_schema=False),
    )


def is_built(folder: Path = STATIC) -> bool:
    """Whether this installation has a dashboard."""
    return (folder / _INDEX).is_file()


async def _enter(_request: Request) -> Response:
    # Relative, so that it holds behind a proxy with a prefix of its own.
    return RedirectResponse("ui/", status_code=307)


async def _serve(request: Request) -> Response:
    files = _files(STATIC)
    if _INDEX not in files:
        return plain(
            404,
            "The dashboard was not built",
            "install treering again without TREERING_NO_DASHBOARD, or in a clone run: python hatch_build.py",
        )
    name = request.path_params["name"] or _INDEX
    found = files.get(name)
    if found is None:
        return plain(404, "There is no such file", f"the dashboard has no {name[:200]!r}; it begins at /ui/")
    headers = {
        "content-security-policy": POLICY,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        # The names of assets change with their content; the page itself is asked for each time.
        "cache-control": "public, max-age=31536000, immutable" if name.startswith(_ASSETS) else "no-cache",
        "vary": "accept-encoding",
    }
    if found.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, media_type=found.type, headers={**headers, "content-encoding": "gzip"})
    return Response(found.data, media_type=found.type, headers=headers)


@cache
def _files(folder: Path) -> dict[str, _File]:
    found: dict[str, _File] = {}
    for path in sorted(folder.rglob("*")):
        kind = _TYPES.get(path.suffix)
        if kind is not None and path.is_file():
            data = path.read_bytes()
            packed = gzip.compress(data, 9, mtime=0) if path.suffix in _PACKED else None
            found[path.relative_to(folder).as_posix()] = _File(data=data, packed=packed, type=kind)
    return found
