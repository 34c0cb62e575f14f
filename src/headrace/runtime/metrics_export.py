"""Exports metrics of runs to Prometheus, on a port of this process, and to OpenTelemetry."""

from __future__ import annotations

import errno
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any

from headrace.core.metrics import METRICS, Kind
from headrace.errors import ConfigError
from headrace.runtime.event_metrics import EventMetrics
from headrace.support.optional_imports import require
from headrace.support.validation import check_text, check_whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from headrace.core.metrics import Metric
    from headrace.events import Observer
    from headrace.kafka.source import Kafka


class MetricsExporter(ABC):
    """The type of the argument `metrics=` of a run."""

    @abstractmethod
    def observe(self, name: str, sources: Mapping[str, Kafka], group: str) -> AbstractContextManager[Observer]:
        """An observer that exports the metrics of a run within the block. `group` is the label of its lag."""


class Metrics(MetricsExporter):
    """Metrics for Prometheus at http://HOST:PORT/metrics, from the start of a run to its end.

    By default `host` is an address that only this machine can reach; there is no login. Several runs of a process may
    share one object, which serves until the last of them ends.
    """

    def __init__(self, port: int = 9100, host: str = "127.0.0.1") -> None:
        check_whole_number("port", port, maximum=65_535, hint="hr.Metrics(port=9100)")
        check_text("host", host, expected="a host name or an address", hint='hr.Metrics(port=9100, host="127.0.0.1")')
        self._address = (host, port)
        self._prometheus = require("prometheus_client", "metrics")
        self._lock = threading.Lock()
        self._runs: list[MetricValues] = []
        self._server: ThreadingTCPServer | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"Metrics(port={self._address[1]}, host={self._address[0]!r})"

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    @contextmanager
    def observe(self, name: str, sources: Mapping[str, Kafka], group: str) -> Iterator[Observer]:
        values = MetricValues()
        observer = EventMetrics(name, sources, group, values)
        with self._lock:
            if self._server is None:
                self._serve()
            self._runs.append(values)
        try:
            yield observer
        finally:
            with self._lock:
                self._runs.remove(values)
                if not self._runs:
                    self._close()

    def _serve(self) -> None:
        registry = self._prometheus.CollectorRegistry(auto_describe=False)
        registry.register(self)
        host, port = self._address
        try:
            server_class = _IPv6Server if ":" in host else _Server
            self._server = server_class(self._address, self._prometheus.MetricsHandler.factory(registry))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"metrics: port {port} of {host} is in use by another program",
                    hint=f"--metrics-port {port + 1 if port < 65535 else 9100}, or hr.Metrics(port=…)",
                ) from error
            raise ConfigError(
                f"metrics: cannot listen on port {port} of {host}: {error.strerror or error}",
                hint='--metrics-port 9100 --metrics-host 127.0.0.1, or hr.Metrics(port=9100, host="127.0.0.1")',
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="headrace-metrics", daemon=True)
        self._thread.start()

    def _close(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
        self._server = self._thread = None

    def collect(self) -> Iterator[Any]:
        """Called by Prometheus's client at each scrape."""
        with self._lock:
            runs = list(self._runs)
        for metric in METRICS:
            samples = {labels: value for values in runs for labels, value in values.of(metric).items()}
            if samples:
                yield self._family(metric, samples)

    def _family(self, metric: Metric, samples: dict[tuple[str, ...], Any]) -> Any:
        core = require("prometheus_client.core", "metrics")
        if metric.kind is Kind.HISTOGRAM:
            family = core.HistogramMetricFamily(metric.name, metric.description, labels=metric.labels)
            for labels, (counts, total) in samples.items():
                bounds = [*map(str, metric.buckets), "+Inf"]
                family.add_metric(labels, buckets=list(zip(bounds, counts, strict=True)), sum_value=total)
            return family
        kind = core.CounterMetricFamily if metric.kind is Kind.COUNTER else core.GaugeMetricFamily
        family = kind(metric.name, metric.description, labels=metric.labels)
        for labels, value in samples.items():
            family.add_metric(labels, value)
        return family


class OpenTelemetry(MetricsExporter):
    """The same metrics as instruments of an OpenTelemetry meter, from `meter_provider` or the global provider.

    The names have no suffix `_total`, because exporters to Prometheus append it to counters.
    """

    def __init__(self, meter_provider: Any = None) -> None:
        provider = meter_provider or require("opentelemetry.metrics", "otel").get_meter_provider()
        meter = provider.get_meter("headrace")
        self._instruments = {metric: _instrument(meter, metric) for metric in METRICS}

    @contextmanager
    def observe(self, name: str, sources: Mapping[str, Kafka], group: str) -> Iterator[Observer]:
        yield EventMetrics(name, sources, group, self)

    def record(self, metric: Metric, value: float, *labels: str) -> None:
        self._instruments[metric](value, dict(zip(metric.labels, labels, strict=True)))


def _instrument(meter: Any, metric: Metric) -> Any:
    """The method of the instrument that records the values of a metric."""
    name, unit = metric.name.removesuffix("_total"), "s" if metric.unit == "seconds" else f"{{{metric.unit}}}"
    match metric.kind:
        case Kind.COUNTER:
            return meter.create_counter(name, unit, metric.description).add
        case Kind.GAUGE:
            return meter.create_gauge(name, unit, metric.description).set
    return meter.create_histogram(
        name, unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
    ).record


class MetricValues:
    """The metrics of one run, written by its observer and read by scrapes from other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Metric, dict[tuple[str, ...], Any]] = {metric: {} for metric in METRICS}

    def record(self, metric: Metric, value: float, *labels: str) -> None:
        with self._lock:
            values = self._values[metric]
            if metric.kind is Kind.GAUGE:
                values[labels] = value
            elif metric.kind is Kind.COUNTER:
                values[labels] = values.get(labels, 0) + value
            else:
                counts, total = values.get(labels, ((0,) * (len(metric.buckets) + 1), 0.0))
                bounds = (*metric.buckets, float("inf"))
                values[labels] = (
                    tuple(count + (value <= bound) for count, bound in zip(counts, bounds, strict=True)),
                    total + value,
                )

    def of(self, metric: Metric) -> dict[tuple[str, ...], Any]:
        """The values of a metric by label values; for a histogram, the cumulative counts of its buckets and the sum."""
        with self._lock:
            return dict(self._values[metric])


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class _IPv6Server(_Server):
    address_family = socket.AF_INET6
