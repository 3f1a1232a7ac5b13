"""Where seals are published: outside of the store, where whoever runs the store cannot rewrite them.

===============================  ==================================================================
``folder``, ``s3://...``         a file or object for each seal, never replaced
``seal.json``                    one file, with the newest seal
``webhook:https://host/path``    one POST for each seal, without its list of commits
``git:path/to/repository``       a note (``refs/notes/treering``) on its newest commit, likewise
===============================  ==================================================================
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from treering.blobs.location import open_blobs
from treering.errors import Conflict, InvalidInput, TreeringError, Unreachable

if TYPE_CHECKING:
    from treering.maintenance.audit import Seal

WEBHOOK: Final = "webhook:"
GIT: Final = "git:"
NOTES: Final = "treering"
"""The git notes that hold seals: ``git log --notes=treering``."""
_TIMEOUT_SECONDS: Final = 30.0


def publish(seal: Seal, to: str) -> str:
    """Publish a seal; return where it is."""
    if to.startswith(WEBHOOK):
        return _post(seal, to.removeprefix(WEBHOOK))
    if to.startswith(GIT):
        return _note(seal, Path(to.removeprefix(GIT)))
    if to.endswith(".json") and "://" not in to:
        path = Path(to)
        path.write_bytes(seal.to_json())
        return str(path)
    blobs = open_blobs(to)
    name = f"seal-{seal.number:08}.json"
    try:
        blobs.put(name, seal.to_json(), if_absent=True)
    except Conflict:
        published = blobs.read(name)
        if published is None or published.data != seal.to_json():
            raise Conflict(
                f"{to} has another {name}: it belongs to another store, or this one was rewritten since; "
                "compare them with: treering audit verify --against"
            ) from None
    return f"{to.rstrip('/')}/{name}"


def _post(seal: Seal, url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidInput(f"{url!r} is not a webhook; use {WEBHOOK}https://host/path")
    headers = {"content-type": "application/json", "user-agent": "treering"}
    request = Request(url, seal.header().to_json(), headers, method="POST")  # noqa: S310 - checked above
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
            response.read()
    except (URLError, OSError) as error:
        raise Unreachable(f"{url} did not take seal {seal.number}: {error}") from error
    return url


def _note(seal: Seal, repository: Path) -> str:
    command = ["git", "-C", str(repository), "notes", f"--ref={NOTES}", "append", "--file=-"]
    try:
        subprocess.run(  # noqa: S603 - git, by its name
            command, input=seal.header().to_json(), capture_output=True, check=True
        )
    except FileNotFoundError:
        raise Unreachable("git is not installed; publish the seal elsewhere") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise TreeringError(f"git could not note seal {seal.number} in {repository}: {said}") from error
    return f"{repository} (git notes --ref={NOTES})"
