"""The dashboard: the built files of `web/`, served below ``/ui/``.

The files are few, so they are read once and kept in memory, compressed where it helps. **Invariant:** a
request can only name a file that was built; no part of it ever becomes a path. The content security policy
lets a page load nothing from other hosts and run no inline script.
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

from treering.server.http import problem_response

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
_COMPRESSIBLE: Final = frozenset({".css", ".html", ".js", ".svg"})


class _File(msgspec.Struct, frozen=True, kw_only=True):
    data: bytes
    gzipped: bytes | None
    type: str


def routes() -> Sequence[Route]:
    """Return the routes of ``/ui/`` and of the redirects that lead there."""
    return (
        Route("/", _redirect, methods=["GET"], include_in_schema=False),
        Route("/ui", _redirect, methods=["GET"], include_in_schema=False),
        Route("/ui/{name:path}", _serve, methods=["GET"], include_in_schema=False),
    )


def is_built(folder: Path = STATIC) -> bool:
    """Return whether this installation contains the dashboard."""
    return (folder / _INDEX).is_file()


async def _redirect(_request: Request) -> Response:
    # Relative, so that it works behind a proxy that adds a prefix.
    return RedirectResponse("ui/", status_code=307)


async def _serve(request: Request) -> Response:
    files = _files(STATIC)
    if _INDEX not in files:
        return problem_response(
            404,
            "Dashboard not built",
            "reinstall treering without TREERING_NO_DASHBOARD, or run in a clone: python hatch_build.py",
        )
    name = request.path_params["name"] or _INDEX
    found = files.get(name)
    if found is None:
        return problem_response(
            404, "Not found", f"the dashboard has no file {name[:200]!r}; it starts at /ui/"
        )
    headers = {
        "content-security-policy": POLICY,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        # Asset names change with their content; the page itself is revalidated each time.
        "cache-control": "public, max-age=31536000, immutable" if name.startswith(_ASSETS) else "no-cache",
        "vary": "accept-encoding",
    }
    if found.gzipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.gzipped, media_type=found.type, headers={**headers, "content-encoding": "gzip"})
    return Response(found.data, media_type=found.type, headers=headers)


@cache
def _files(folder: Path) -> dict[str, _File]:
    found: dict[str, _File] = {}
    for path in sorted(folder.rglob("*")):
        kind = _TYPES.get(path.suffix)
        if kind is not None and path.is_file():
            data = path.read_bytes()
            gzipped = gzip.compress(data, 9, mtime=0) if path.suffix in _COMPRESSIBLE else None
            found[path.relative_to(folder).as_posix()] = _File(data=data, gzipped=gzipped, type=kind)
    return found
