"""Where a WAL database may live: on a disk of this machine.

SQLite's write-ahead log is shared memory between processes; on a network file system two machines would
each have their own idea of it and destroy the database. So such a folder is refused before it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from treering.errors import Unsupported

_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"}
)
_NETWORK_PREFIXES: Final = ("fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.juicefs")


def refuse_network(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Raise `Unsupported` when the folder is on a file system that other machines share."""
    kind = file_system(folder, mounts)
    if kind is not None and (kind in _NETWORK or kind.startswith(_NETWORK_PREFIXES)):
        raise Unsupported(
            f"{folder} is on a network file system ({kind}), where SQLite cannot share its log safely; "
            "use a local folder, or PostgreSQL (postgresql://...) for several machines"
        )


def file_system(folder: Path, mounts: Path) -> str | None:
    """The type of the file system under a folder; ``None`` where the system does not say."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    here = folder.resolve()
    best, kind = -1, None
    for line in lines:
        fields = line.split(" ")
        point = Path(fields[4].replace("\\040", " "))
        if here.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[fields.index("-") + 1]
    return kind
