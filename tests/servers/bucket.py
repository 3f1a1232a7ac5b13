"""Where to find an S3 bucket, and with which key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class S3Bucket:
    """An empty bucket of a server on this machine, addressed by path rather than by host name."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    region: str = "us-east-1"

    def obstore(self, *, prefix: str | None = None) -> Any:
        """The bucket as obstore sees it."""
        from obstore.store import S3Store

        return S3Store(
            self.bucket,
            prefix=prefix,
            endpoint=self.endpoint,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            region=self.region,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
