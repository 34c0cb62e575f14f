"""`headrace replay` on a real broker, as typed."""

import gzip
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import pairwise

import pytest


@pytest.fixture(autouse=True)
def cluster(kafka, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka.bootstrap)


def whole(cli, topic):
    done = cli("consume", topic.name, "--json")
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def same(record):
    return {name: value for name, value in record.items() if name not in ("topic", "offset")}


def test_what_was_recorded_is_sent_again_with_everything_but_its_offsets(topic, cli, tmp_path):
    first, second = topic(partitions=3), topic(partitions=3)
    arguments = ("--sample", "trades", "--count", 30, "--start", "1h", "--every", "10s", "--header", "shop=1")
    assert cli("produce", first.name, *arguments).code == 0
    first.produce([None, b"\xff"], partition=2, key=b"\x00\xff")
    file = tmp_path / "trades.jsonl.gz"
    file.write_bytes(gzip.compress(cli("consume", first.name, "--json").out.encode()))
    assert cli("replay", file, "--to", second.name, "--speed", "max", "--keep-partitions").code == 0
    assert [same(record) for record in whole(cli, second)] == [same(record) for record in whole(cli, first)]


def test_pauses_are_kept_at_the_speed_that_is_asked_for_and_times_shifted_to_now(topic, cli, tmp_path):
    events = topic(partitions=2)
    file = tmp_path / "orders.jsonl"
    noons = [f"2026-01-01 12:0{minute}:00.5" for minute in (1, 0, 2)]  # the second is late, and stays so
    file.write_text("".join(json.dumps({"user": f"u{n}", "e": {"at": at}}) + "\n\n" for n, at in enumerate(noons)))
    began = time.time()
    arguments = ("--to", events.name, "--time", "e.at", "--key", "user", "--speed", "60x", "--times", "shifted")
    assert cli("replay", file, *arguments).code == 0
    assert time.time() - began >= 1.0
    found = sorted(whole(cli, events), key=lambda record: record["timestamp"])
    assert [record["key"] for record in found] == ["u1", "u0", "u2"]
    for record, late in zip(found, (-120, -60, 0), strict=True):  # faster than they came: the last is of now
        at = json.loads(record["value"])["e"]["at"]
        assert len(at) == len(noons[0])
        assert abs(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() - began - late) < 30
        assert abs(datetime.fromisoformat(record["timestamp"]).timestamp() - began - late) < 30


@pytest.mark.parametrize("speed", ["max", "86400x"])
def test_a_day_at_once_is_shifted_to_where_a_broker_takes_it(topic, cli, tmp_path, speed):
    """Kafka 4 refuses what is more than an hour ahead of its clock."""
    events = topic(partitions=1)
    file = tmp_path / "day.jsonl"
    file.write_text("".join(json.dumps({"at": 1_700_000_000 + 600 * n}) + "\n" for n in range(145)))
    began = time.time()
    done = cli("replay", file, "--to", events.name, "--time", "at", "--times", "shifted", "--speed", speed)
    assert (done.code, "145 acknowledged, 0 failed" in done.err) == (0, True), done.err
    times = [json.loads(record["value"])["at"] for record in whole(cli, events)]
    assert [later - earlier for earlier, later in pairwise(times)] == [600] * 144
    assert began - 5 < times[-1] < time.time() + 5


def test_kept_times_that_a_topic_does_not_keep_are_warned_of(topic, cli, tmp_path):
    events = topic(partitions=1)
    file = tmp_path / "old.jsonl"
    file.write_text('{"at": 1577836800}\n')
    done = cli("replay", file, "--to", events.name, "--time", "at")
    assert (done.code, "older than" in done.err) == (0, True)


def test_the_first_moment_of_1970_is_refused_for_the_client_takes_it_as_now(topic, cli, tmp_path):
    events = topic(partitions=1, config={"retention.ms": "-1"})
    file = tmp_path / "old.jsonl"
    file.write_text('{"at": 0}\n{"at": 1}\n')
    done = cli("replay", file, "--to", events.name, "--time", "at", "--speed", "max")
    assert (done.code, "1 acknowledged, 1 failed" in done.err, "1970" in done.err) == (1, True, True)
    assert [record["timestamp"] for record in whole(cli, events)] == ["1970-01-01T00:00:01.000Z"]


def test_records_are_sent_though_standard_error_is_closed(topic, cli, tmp_path):
    events = topic(partitions=1)
    file = tmp_path / "day.jsonl"
    file.write_text('{"n": 1}\n{"n": 2}\n')
    typed = f"{sys.executable} -m headrace.cli.main replay {file} --to {events.name} --speed max 2>&-"
    done = subprocess.run(["bash", "-c", typed], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, len(whole(cli, events))) == (0, b"", 2)


def test_nothing_is_sent_of_a_file_with_a_line_that_is_no_record(topic, cli, tmp_path):
    events = topic(partitions=1)
    file = tmp_path / "half.jsonl"
    file.write_text('{"at": 1577836800}\nnot a record\n')
    done = cli("replay", file, "--to", events.name, "--time", "at")
    assert (done.code, f"{file}, line 2: not JSON" in done.err) == (2, True)
    assert cli("consume", events.name).out == ""
