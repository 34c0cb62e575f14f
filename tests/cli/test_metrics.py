"""`headrace run --metrics-port`: what is scraped while a pipeline reads from a real broker."""

import importlib
import json
import signal
import socket
import urllib.request
from contextlib import suppress

import pytest

from support.command_line import HeadraceProcess


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def scrape(port):
    parse = importlib.import_module("prometheus_client.parser").text_string_to_metric_families
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        samples = [sample for family in parse(answer.read().decode()) for sample in family.samples]
        return {(one.name, *(one.labels[name] for name in sorted(one.labels))): one.value for one in samples}
    return {}


def test_a_run_serves_its_metrics_until_it_ends(app, topic, tmp_path, port):
    clicks = topic(partitions=1)
    clicks.produce([{"id": number} for number in range(100)])
    file = app(clicks, more="limits=hr.Limits(max_records=60),")
    with HeadraceProcess("run", file, "--metrics-port", port, "--log-format", "json", cwd=tmp_path) as run:
        run.wait_for(lambda: scrape(port))
        assert not run.out  # Spark is still starting
        run.wait_for(lambda: '"BatchStarted"' in run.out)
        run.wait_for(lambda: scrape(port).get(("headrace_records_total", "clicks")) == 100)
        run.wait_for(lambda: '"CaughtUp"' in run.out)
        found = scrape(port)
        run.process.send_signal(signal.SIGTERM)
        assert run.finish().code == 0, run.err
    assert not scrape(port)
    assert found["headrace_batches_total", "clicks"] == 2
    assert found["headrace_rows_total", "clicks"] == 100
    assert found["headrace_batch_seconds_count", "clicks"] == 2
    assert found["headrace_batch_phase_seconds_total", "write", "clicks"] > 0
    assert found["kafka_consumergroup_group_offset", "default", "clicks", "0", clicks.name] == 100
    assert found["kafka_consumergroup_group_lag", "default", "clicks", "0", clicks.name] == 0
    first, second = (event for event in map(json.loads, run.out.splitlines()) if event["event"] == "BatchDone")
    assert first["partition_lag"] == {f"{clicks.name}[0]": 40}
    assert second["partition_lag"] == {}
    delay = second["produce_delay"] or first["produce_delay"]  # the second one on a slow machine only
    assert 0 < delay["p50"] <= delay["p99"] <= delay["max"] < 600
    assert found["headrace_produce_delay_seconds", "clicks", "0.99"] == delay["p99"]


def test_a_used_port_is_an_error_before_spark_starts(app, cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        refused = cli("run", app(), "--metrics-port", number)
    assert refused.code == 2
    assert refused.line("error: ") == f"metrics: port {number} of 127.0.0.1 is in use by another program"
    assert refused.line("hint: ").startswith("--metrics-port ")


def test_a_host_without_a_port_is_an_error(app, cli):
    refused = cli("run", app(), "--metrics-host", "0.0.0.0")
    assert refused.code == 2
    assert refused.line("error: ") == "expected --metrics-port with --metrics-host"
