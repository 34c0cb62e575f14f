"""What Prometheus scrapes and OpenTelemetry collects."""

import importlib
import socket
import sys
import threading
import urllib.request

import psutil
import pytest

import headrace as hr
from headrace import events
from headrace.core.metrics import METRICS, Kind
from headrace.errors import ConfigError
from headrace.types import Batch, Range, TopicPartition
from support.simulation import A, simulate

BATCH = Batch(7, (Range(TopicPartition("clicks", 0), 0, 1500),))
DONE = events.BatchDone(
    BATCH, 0.5, 12, 1000, 990, events.Phases(0.02, 0.001, 0.4, 0.1), 4096, 1.25, events.ProduceDelay(1, 2, 3)
)


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def scrape(metrics):
    parse = importlib.import_module("prometheus_client.parser").text_string_to_metric_families
    with urllib.request.urlopen(metrics.url, timeout=10) as answer:
        families = list(parse(answer.read().decode()))
    return {family.name: family for family in families}


def value(families, name, **labels):
    """The value of one sample; None if there is none."""
    samples = [sample for family in families.values() for sample in family.samples]
    return next((one.value for one in samples if (one.name, one.labels) == (name, labels)), None)


def observing(metrics, name="clicks"):
    return metrics.observe(name, {"rows": hr.Kafka("nowhere:1", topics=["clicks"])}, name)


def test_prometheus_scrapes_the_metrics_of_a_run(port):
    metrics = hr.Metrics(port=port)
    with observing(metrics) as observe:
        observe(DONE)
        found = scrape(metrics)
    assert value(found, "headrace_records_total", pipeline="clicks") == 1000
    assert value(found, "headrace_batch_phase_seconds_total", pipeline="clicks", phase="write") == 0.4
    assert value(found, "headrace_produce_delay_seconds", pipeline="clicks", quantile="0.99") == 2
    assert value(found, "headrace_batch_seconds_count", pipeline="clicks") == 1
    assert value(found, "headrace_batch_seconds_sum", pipeline="clicks") == 0.5
    assert value(found, "headrace_batch_seconds_bucket", pipeline="clicks", le="0.25") == 0
    assert value(found, "headrace_batch_seconds_bucket", pipeline="clicks", le="0.5") == 1
    assert value(found, "headrace_batch_seconds_bucket", pipeline="clicks", le="+Inf") == 1


def test_every_metric_of_the_list_is_scraped_with_its_kind_and_description(port):
    metrics = hr.Metrics(port=port)
    with observing(metrics) as observe:
        observe(DONE)
        found = scrape(metrics)
    assert {name: (family.type, family.documentation) for name, family in found.items()} == {
        metric.name.removesuffix("_total"): (metric.kind, metric.description) for metric in METRICS
    }


def test_the_server_ends_with_the_run(port):
    metrics = hr.Metrics(port=port)
    before = threading.active_count()
    with observing(metrics):
        assert scrape(metrics)
    with pytest.raises(OSError, match="refused"):
        scrape(metrics)
    assert threading.active_count() == before
    with observing(metrics):
        assert scrape(metrics)


def test_metrics_are_served_on_the_loopback_interface_alone(port):
    with observing(hr.Metrics(port=port)):
        listening = {
            one.laddr.ip for one in psutil.Process().net_connections() if one.laddr.port == port and not one.raddr
        }
    assert listening == {"127.0.0.1"}


def test_runs_of_a_process_share_a_port(port):
    metrics = hr.Metrics(port=port)
    with observing(metrics, "one") as observe:
        with observing(metrics, "other") as observe_other:
            observe(DONE)
            observe_other(DONE)
            found = scrape(metrics)
            assert value(found, "headrace_batches_total", pipeline="one") == 1
            assert value(found, "headrace_batches_total", pipeline="other") == 1
        assert value(scrape(metrics), "headrace_batches_total", pipeline="other") is None


def test_a_used_port_is_an_error_with_the_cure():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"port {number} of 127.0.0.1 is in use") as caught,
            observing(hr.Metrics(port=number)),
        ):
            pass
    assert "--metrics-port" in caught.value.hint


def test_an_address_of_another_machine_is_an_error(port):
    with (
        pytest.raises(ConfigError, match=f"cannot listen on port {port} of 192.0.2.1"),
        observing(hr.Metrics(port=port, host="192.0.2.1")),
    ):
        pass


@pytest.mark.parametrize("wrong", [0, -1, 70_000, "9100", True])
def test_a_port_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError, match="port: expected a whole number from 1 to 65,535"):
        hr.Metrics(port=wrong)


def test_a_missing_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[metrics\]'"):
        hr.Metrics()
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[otel\]'"):
        hr.OpenTelemetry()


def test_something_else_as_metrics_is_refused_before_the_run():
    with pytest.raises(ConfigError, match=r"metrics: expected .*MetricsExporter, got 9100"):
        simulate({A: 10}).pipeline.run(metrics=9100)


def test_opentelemetry_collects_the_same_metrics():
    sdk = importlib.import_module("opentelemetry.sdk.metrics")
    reader = importlib.import_module("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader])
    try:
        with observing(hr.OpenTelemetry(meter_provider=provider)) as observe:
            observe(DONE)
            observe(DONE)
            (resource,) = reader.get_metrics_data().resource_metrics
    finally:
        provider.shutdown()
    (scope,) = resource.scope_metrics
    found = {one.name: one for one in scope.metrics}
    assert set(found) == {metric.name.removesuffix("_total") for metric in METRICS}
    assert found["headrace_records"].unit == "{records}"
    assert found["headrace_records"].data.data_points[0].value == 2000
    assert dict(found["headrace_records"].data.data_points[0].attributes) == {"pipeline": "clicks"}
    phases = found["headrace_batch_phase_seconds"].data.data_points
    assert {point.attributes["phase"]: point.value for point in phases}["write"] == 0.8
    (histogram,) = found["headrace_batch_seconds"].data.data_points
    assert (histogram.count, histogram.sum) == (2, 1.0)
    assert tuple(histogram.explicit_bounds) == next(m.buckets for m in METRICS if m.kind is Kind.HISTOGRAM)
