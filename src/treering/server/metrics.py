"""Metrics of the server process, for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

MEDIA_TYPE: Final = CONTENT_TYPE_LATEST
_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """Requests by route and status, and their duration; memory and start time of the process."""

    def __init__(self) -> None:
        # A registry of our own: a process may serve several stores, and Prometheus's default one is global.
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "treering_requests", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "treering_request_seconds",
            "Duration of requests.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
