"""The metrics of a manual batch loop over a real broker."""

import socket
import urllib.request

import pytest

import headrace as hr
from headrace import stores


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_a_batch_loop_serves_its_metrics_while_it_is_iterated(spark, topic, port, tmp_path):
    clicks = topic(partitions=1)
    clicks.produce([{"n": number} for number in range(10)])
    metrics = hr.Metrics(port=port)

    def scrape():
        with urllib.request.urlopen(metrics.url, timeout=10) as answer:
            return answer.read().decode().splitlines()

    with hr.stream(
        hr.Kafka(clicks.bootstrap, topics=[clicks.name], format=hr.Json("n INT")),
        offsets=stores.SQLite(tmp_path / "offsets.db"),
        name="loop",
        limits=hr.Limits(max_records=6),
        until="caught-up",
        session=spark,
        metrics=metrics,
    ) as batches:
        for number, batch in enumerate(batches):
            assert f'headrace_batches_total{{pipeline="loop"}} {number}.0' in scrape()
            if number == 1:
                assert 'kafka_consumergroup_group_sum_lag{cluster_name="default",group="loop"} 4.0' in scrape()
            batch.commit()
    with pytest.raises(OSError, match="refused"):
        scrape()
