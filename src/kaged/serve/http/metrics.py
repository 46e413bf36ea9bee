"""Numbers for Prometheus, in a registry of our own so that tests and daemons never share one."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from kaged import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Metrics:
    """What the HTTP edge counts, and gauges that others hang in with `watch`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Gauge(
            "kaged_build_info",
            "Always 1; the version is the label.",
            ["version"],
            registry=self.registry,
        ).labels(__version__).set(1)
        self._requests = Counter(
            "kaged_http_requests",
            "HTTP requests answered.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "kaged_http_request_seconds",
            "Time to answer an HTTP request.",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._refused = Counter(
            "kaged_http_refused",
            "Requests that did not get in, by reason.",
            ["code"],
            registry=self.registry,
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answer. `route` is the route's pattern, so labels stay few."""
        label = method if method in _METHODS else "OTHER"
        self._requests.labels(label, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def refused(self, code: str) -> None:
        """Count a request that was refused access."""
        self._refused.labels(code).inc()

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Show the value that `read` returns at the moment of asking."""
        Gauge(name, help_text, registry=self.registry).set_function(read)

    def collect(self, *collectors: Collector) -> None:
        """Show the families of these collectors as well."""
        for one in collectors:
            self.registry.register(one)

    def exposition(self) -> bytes:
        """Write all of it in the Prometheus text format."""
        return generate_latest(self.registry)
