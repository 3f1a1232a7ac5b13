"""Counters of a server, in the text format of Prometheus."""

from __future__ import annotations

import resource
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """Counts requests by route and status, and how long they took; others add gauges of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self._seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(
            lambda: [0.0] * (len(_BOUNDS) + 2)
        )
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._since = time.time()

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request that was answered."""
        with self._lock:
            self._requests[method, route, status] += 1
            row = self._seconds[method, route]
            row[-2] += 1
            row[-1] += seconds
            for place, bound in enumerate(_BOUNDS):
                if seconds <= bound:
                    row[place] += 1

    def add(self, name: str, amount: int = 1) -> None:
        """Add to a counter of one's own (``otlp_spans``)."""
        with self._lock:
            self._counts[name] += amount

    def gauge(self, name: str, words: str, read: Callable[[], float]) -> None:
        """A value that is asked for when someone looks."""
        self._gauges[name] = (words, read)

    def text(self) -> str:
        """All of it."""
        with self._lock:
            lines = [*self._request_lines(), *self._own_lines()]
        return "\n".join(lines) + "\n"

    def _request_lines(self) -> Iterator[str]:
        yield "# HELP treering_requests_total Requests that were answered."
        yield "# TYPE treering_requests_total counter"
        for (method, route, status), number in sorted(self._requests.items()):
            yield f'treering_requests_total{{method="{method}",route="{route}",status="{status}"}} {number}'
        yield "# HELP treering_request_seconds How long answers took."
        yield "# TYPE treering_request_seconds histogram"
        for (method, route), row in sorted(self._seconds.items()):
            of = f'method="{method}",route="{route}"'
            for bound, number in zip(_BOUNDS, row, strict=False):
                yield f'treering_request_seconds_bucket{{{of},le="{bound:g}"}} {number:g}'
            yield f'treering_request_seconds_bucket{{{of},le="+Inf"}} {row[-2]:g}'
            yield f"treering_request_seconds_count{{{of}}} {row[-2]:g}"
            yield f"treering_request_seconds_sum{{{of}}} {row[-1]:.6f}"

    def _own_lines(self) -> Iterator[str]:
        for name, number in sorted(self._counts.items()):
            yield f"# TYPE treering_{name}_total counter"
            yield f"treering_{name}_total {number}"
        for name, (words, read) in sorted(self._gauges.items()):
            yield f"# HELP treering_{name} {words}"
            yield f"# TYPE treering_{name} gauge"
            yield f"treering_{name} {read():g}"
        yield "# HELP process_resident_memory_max_bytes The most memory that the server held so far."
        yield "# TYPE process_resident_memory_max_bytes gauge"
        yield f"process_resident_memory_max_bytes {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}"
        yield "# TYPE process_start_time_seconds gauge"
        yield f"process_start_time_seconds {self._since:.3f}"
