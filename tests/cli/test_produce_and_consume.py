"""`headrace produce` and `headrace consume` on a real broker, as typed."""

import base64
import gzip
import json
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from datetime import datetime

import pytest

from support.command_line import SOON, HeadraceProcess

# What org.apache.kafka.common.utils.Utils.murmur2 makes of these, by the tests of Kafka itself.
MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.fixture(autouse=True)
def cluster(kafka, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka.bootstrap)


@pytest.fixture
def name():
    return f"tools-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def lines(tmp_path):
    """A file of these lines."""

    def write(*given):
        path = tmp_path / f"lines-{uuid.uuid4().hex[:6]}"
        path.write_bytes(b"".join(line if isinstance(line, bytes) else f"{line}\n".encode() for line in given))
        return path

    return write


def records(done):
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def piped(*arguments, given=b"", **options):
    """The command with standard input, in a process of its own."""
    typed = [sys.executable, "-m", "headrace.cli.main", *map(str, arguments)]
    return subprocess.run(typed, input=given, capture_output=True, timeout=60, check=False, **options)


def test_lines_of_standard_input_become_records_and_each_says_where_it_lies(topic, cli):
    countries = topic(partitions=1)
    sent = piped(
        "produce",
        countries.name,
        *("--key-separator", ":", "--null", "-", "--header", "a=1", "--header", "a=2", "-v"),
        given="Precision Products:France\nBiomedical Materials:USA\r\nZoë:Öland\ngone:-\n-:nobody's\nlast:".encode(),
    )
    assert (sent.returncode, sent.stdout.decode().splitlines()) == (
        0,
        [f"{countries.name}[0] offset {number}" for number in range(6)],
    )
    assert sent.stderr.decode().startswith("6 acknowledged, 0 failed")
    found = records(cli("consume", countries.name, "--json"))
    assert [(record["key"], record["value"]) for record in found] == [
        ("Precision Products", "France"),
        ("Biomedical Materials", "USA"),
        ("Zoë", "Öland"),
        ("gone", None),
        (None, "nobody's"),
        ("last", ""),
    ]
    assert [record["offset"] for record in found] == list(range(6))
    assert found[0]["headers"] == [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
    assert found[0]["timestamp_type"] == "create"
    shown = cli("consume", countries.name, "--key-separator", ":", "--null", "-").out.splitlines()
    assert shown[2:5] == ["Zoë:Öland", "gone:-", "-:nobody's"]
    one = cli("consume", countries.name, "--show", "topic,partition,offset,key", "--count", 1).out
    assert one == f"{countries.name}\t0\t0\tPrecision Products\tFrance\n"


def test_keys_go_where_javas_producer_sends_them_and_a_named_partition_wins(topic, cli, lines):
    events = topic(partitions=7)
    keyed = lines(*(f"{key}\t{number}" for key in MURMUR2 for number in range(3)))
    assert cli("produce", events.name, "--file", keyed, "--key-separator", "\t").code == 0
    found = records(cli("consume", events.name, "--json"))
    where = {record["key"]: record["partition"] for record in found}
    assert where == {key: (value & 0x7FFFFFFF) % 7 for key, value in MURMUR2.items()}
    assert len(set(where.values())) > 1
    for key in MURMUR2:  # in the order they were sent
        assert [record["value"] for record in found if record["key"] == key] == ["0", "1", "2"]
    assert cli("produce", events.name, "--file", keyed, "--key-separator", "\t", "--partition", 5).code == 0
    assert len(cli("consume", events.name, "--partition", 5).out.splitlines()) >= 18
    wrong = cli("produce", events.name, "--file", keyed, "--partition", 7, "--timeout", 2)
    assert (wrong.code, "0 acknowledged, 18 failed" in wrong.err) == (1, True)


def test_records_without_a_key_are_spread_over_all_partitions(topic, cli):
    events = topic(partitions=4)
    assert cli("produce", events.name, "--sample", "words", "--count", 200).code == 0
    found = records(cli("consume", events.name, "--json"))
    assert {record["key"] for record in found} == {None}
    assert min(Counter(record["partition"] for record in found).values()) > 10


def test_a_record_that_is_too_large_fails_at_once_and_is_kept_with_the_reason(topic, cli, lines, tmp_path):
    events = topic(partitions=1, config={"max.message.bytes": "20000"})
    kept = tmp_path / "failed.jsonl"
    file = lines("a:small", "b:" + "x" * 30_000, "c:small", "no key at all")
    began = time.monotonic()
    sent = cli("produce", events.name, "--file", file, "--key-separator", ":", "--errors", kept, "--timeout", 60)
    assert time.monotonic() - began < 10
    assert (sent.code, f"2 acknowledged, 2 failed (in {kept})" in sent.err) == (1, True)
    failed = {record["key"]: record for record in map(json.loads, kept.read_text().splitlines())}
    assert failed["b"]["value"] == "x" * 30_000
    assert "too large" in failed["b"]["error"]
    assert failed[None]["error"] == "no key: the line has no ':'"

    assert cli("topics", "alter", events.name, "--config", "max.message.bytes=100000").code == 0
    assert cli("replay", kept, "--to", events.name, "--speed", "max").code == 0
    found = records(cli("consume", events.name, "--json"))
    assert Counter(record["key"] for record in found) == Counter(["a", "b", "c", None])


def test_a_record_that_fails_on_its_way_is_kept_with_its_headers_and_its_time(topic, cli, tmp_path):
    events = topic(partitions=1)
    kept = tmp_path / "failed.jsonl"
    arguments = ("--sample", "trades", "--count", 3, "--start", "1h", "--header", "trace=abc", "--partition", 7)
    sent = cli("produce", events.name, *arguments, "--timeout", 2, "--errors", kept)
    assert (sent.code, "0 acknowledged, 3 failed" in sent.err) == (1, True)
    failed = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [record["headers"] for record in failed] == [[{"name": "trace", "value": "abc"}]] * 3
    assert all(time.time() - datetime.fromisoformat(record["timestamp"]).timestamp() > 3500 for record in failed)
    assert cli("replay", kept, "--to", events.name).code == 0
    again = records(cli("consume", events.name, "--json"))
    for same in ("key", "value", "headers", "timestamp", "timestamp_type"):
        assert [record[same] for record in again] == [record[same] for record in failed]


def test_what_was_compressed_or_acknowledged_otherwise_reads_the_same(topic, cli, lines):
    wanted = [json.dumps({"id": number, "text": "the same words " * 5}) for number in range(50)]
    file = lines(*wanted)
    ways = [("--compression", kind) for kind in ("none", "gzip", "snappy", "lz4", "zstd")]
    ways += [("--acks", kind) for kind in ("0", "1")] + [("--linger", "0"), ("--batch-size", "500")]
    events = topic(partitions=len(ways))
    for number, way in enumerate(ways):
        sent = cli("produce", events.name, "--file", file, "--partition", number, *way)
        assert sent.code == 0, sent.err
        assert ("without acknowledgement" in sent.err) == (way == ("--acks", "0"))
    deadline = time.monotonic() + 30
    while len(found := records(cli("consume", events.name, "--json"))) < len(wanted) * len(ways):
        assert time.monotonic() < deadline  # what nobody acknowledged may come a little later
    for number, way in enumerate(ways):
        assert [record["value"] for record in found if record["partition"] == number] == wanted, way


def test_a_value_that_cannot_be_encoded_is_reported_also_with_acks_0(topic, cli, lines):
    """Without acknowledgements only what is wrong before the sending shows."""
    events = topic(partitions=1)
    file = lines("Precision Products:France", 'Precision Products:"France"')
    sent = cli("produce", events.name, "--file", file, "--key-separator", ":", "--format", "json", "--acks", 0)
    assert (sent.code, "1 sent without acknowledgement, 1 failed" in sent.err) == (1, True)
    assert "failed: the value is not json" in sent.err


def test_compressed_records_take_fewer_bytes_and_gzip_the_fewest(kafka, topic, cli, lines):
    file = lines(*(json.dumps({"id": number, "text": "the same words " * 5}) for number in range(500)))
    ways = ("none", "gzip", "snappy", "lz4")
    events = topic(partitions=len(ways))
    for number, way in enumerate(ways):
        arguments = ("--partition", number, "--compression", way, "--linger", 200)
        assert cli("produce", events.name, "--file", file, *arguments).code == 0
    logs = kafka.brokers[0].directory / "data"
    size = {way: (logs / f"{events.name}-{n}" / f"{0:020}.log").stat().st_size for n, way in enumerate(ways)}
    assert size["gzip"] < min(size["snappy"], size["lz4"]) < max(size["snappy"], size["lz4"]) < size["none"] / 2
    texts = [cli("consume", events.name, "--partition", number).out for number in range(len(ways))]
    assert set(texts) == {file.read_text()}


def test_files_may_be_packed_and_values_bytes(topic, cli, tmp_path):
    events = topic(partitions=1)
    packed = tmp_path / "values.gz"
    packed.write_bytes(gzip.compress(b"00ff1b\n\nzz\n"))
    sent = cli("produce", events.name, "--file", packed, "--format", "hex")
    assert (sent.code, "2 acknowledged, 1 failed" in sent.err, "not hex" in sent.err) == (1, True, True)
    assert cli("consume", events.name, "--format", "hex").out == "00ff1b\n\n"
    assert cli("consume", events.name, "--format", "base64").out.splitlines()[0] == "AP8b"
    (first, _) = records(cli("consume", events.name, "--json"))
    assert base64.b64decode(first["value_base64"]) == b"\x00\xff\x1b"
    assert "value" not in first


def test_control_characters_are_shown_escaped(topic, cli):
    events = topic(partitions=1)
    events.produce([b"\x1b[2Jcleared\r\nhidden\x07", "caf\u00e9 \u202egnp.exe".encode(), b"\xff\xfe raw", b"\ttab"])
    shown = cli("consume", events.name).out
    assert shown.splitlines() == [
        "\\x1b[2Jcleared\\r\\nhidden\\x07",
        "café \\u202egnp.exe",
        "\\xff\\xfe raw",
        "\ttab",
    ]
    assert "\x1b" not in cli("consume", events.name, "--json").out


def test_json_is_checked_and_what_is_none_is_named_with_its_place(topic, cli):
    events = topic(partitions=1)
    events.produce([b'{"a":\n 1.10}', b"nope", b"NaN", None, b'"text"'])
    shown = cli("consume", events.name, "--format", "json")
    assert (shown.code, shown.out.splitlines()) == (1, ['{"a": 1.10}', "null", '"text"'])
    assert cli("consume", events.name, "--format", "json", "--count", 2).out.splitlines() == ['{"a": 1.10}', "null"]
    assert f"{events.name}[0] offset 1: not json" in shown.err
    assert "2 records of another format" in shown.err
    whole = [json.loads(line) for line in cli("consume", events.name, "--format", "json", "--json").out.splitlines()]
    assert [record["value"] for record in whole] == [{"a": 1.1}, None, '"text"']


def test_a_topic_that_is_not_there_is_an_error_and_is_not_made(cli, name):
    name = f"nobody-has-made-this-one-{name[-4:]}"  # nor one of nearly that name, which would be suggested
    for verb in (("produce", name, "--sample", "words", "--count", 1), ("consume", name)):
        done = cli(*verb)
        assert (done.code, done.line("hint: ")) == (2, f"headrace topics create {name} --partitions 3")
    assert name not in cli("topics", "list").out


@pytest.mark.parametrize("verb", ["produce", "replay"])
def test_an_unreachable_cluster_is_reported_after_the_timeout(cli, lines, verb):
    file = lines('{"at": 1763208000}')
    given = ("any", "--file", file) if verb == "produce" else (file, "--to", "any", "--time", "at")
    began = time.monotonic()
    done = cli(verb, *given, "--timeout", 1, "--bootstrap", "127.0.0.1:1")
    assert (done.code, "Connection refused" in done.line("error: ")) == (1, True)
    assert 0.9 < time.monotonic() - began < 8


def test_the_first_ctrl_c_leaves_a_server_that_says_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(SOON)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        typed = ("produce", "any", "--sample", "words", "--bootstrap", address)
        with HeadraceProcess(*typed, cwd=tmp_path) as producer, silent.accept()[0]:
            producer.process.send_signal(signal.SIGINT)
            done = producer.finish(10)
    assert (done.code != 0, "Traceback" in done.err) == (True, False), done.err


@pytest.mark.parametrize("verb", [("produce", "any"), ("consume", "any"), ("replay", __file__, "--to", "any")])
def test_a_missing_bootstrap_is_an_error(cli, monkeypatch, verb):
    monkeypatch.delenv("KAFKA_BOOTSTRAP")
    done = cli(*verb)
    assert (done.code, done.line("error: ")) == (2, "no Kafka cluster given")
    assert "--bootstrap localhost:9092" in done.line("hint: ")


def test_records_come_at_the_rate_that_was_asked_for_and_ctrl_c_tells_how_many(topic, cli, tmp_path):
    events = topic(partitions=2)
    began = time.monotonic()
    assert cli("produce", events.name, "--sample", "trades", "--rate", 40, "--count", 20).code == 0
    assert time.monotonic() - began >= 19 / 40
    with HeadraceProcess("produce", events.name, "--sample", "clicks", "--rate", 200, "-v", cwd=tmp_path) as producer:
        producer.wait_for(lambda: producer.out.count("offset") >= 20)
        producer.process.send_signal(signal.SIGINT)
        done = producer.finish()
    told = int(done.err.removeprefix("stopped: ").split()[0].replace(",", ""))
    assert (done.code, told) == (0, done.out.count("offset"))
    assert len(cli("consume", events.name).out.splitlines()) == 20 + told


def test_the_same_seed_and_start_send_the_same_records(topic, cli):
    made = []
    for _ in range(2):
        events = topic(partitions=1)
        arguments = ("--sample", "events", "--count", 5, "--seed", 3, "--start", "1h", "--every", "20s")
        assert cli("produce", events.name, *arguments).code == 0
        found = records(cli("consume", events.name, "--json"))
        made.append([(record["key"], json.loads(record["value"])["health"]) for record in found])
        first, second = (json.loads(record["value"])["id"] for record in found[:2])
        assert second - first == 20_000
    assert made[0] == made[1]
    old = cli("produce", events.name, "--sample", "words", "--count", 1, "--start", "2020-01-01")
    assert "older than" in old.err


def test_reading_begins_at_the_given_position(topic, cli):
    events = topic(partitions=2, config={"retention.ms": "-1"})  # its records are old
    events.produce([{"id": number} for number in range(10)], timestamp=1_700_000_000_000)
    events.produce([{"id": number} for number in range(10, 14)], timestamp=1_700_000_060_000)

    def read(*where):
        return sorted(json.loads(line)["id"] for line in cli("consume", events.name, *where).out.splitlines())

    assert read() == read("--from", "earliest") == list(range(14))
    assert read("--from", "latest") == []
    assert read("--from", "-1") == [12, 13]
    assert read("--from", "2023-11-14T22:13:30Z") == read("--from", "2023-11-14T22:13:30") == [10, 11, 12, 13]
    assert read("--from", "1960-01-01") == list(range(14))
    assert read("--from", f"{events.name}:0:6") == [12]
    assert read("--from", f"{events.name}:0:6", "--from", f"{events.name}:1:5") == [11, 12, 13]
    assert read("--from", json.dumps({events.name: {"1": 6}})) == [13]
    assert read("--partition", "1") == [1, 3, 5, 7, 9, 11, 13]
    assert len(read("--count", "3")) == 3

    beyond = cli("consume", events.name, "--from", f"{events.name}:0:8")
    assert (beyond.code, "the log ends before it" in beyond.err) == (2, True)
    events.truncate(before=3)
    gone = cli("consume", events.name, "--from", f"{events.name}:0:1")
    assert (gone.code, "aged out" in gone.err, "3 to 7" in gone.err) == (2, True, True)
    assert cli("consume", events.name, "--partition", "0", "--partition", "2").code == 2


def test_a_group_goes_on_where_it_was_whatever_from_says(topic, cli, name):
    events = topic(partitions=2)
    events.produce([{"id": number} for number in range(10)])
    late = ("consume", events.name, "--group", f"{name}-late")
    assert cli(*late, "--from", "latest").out == ""
    events.produce([{"id": number} for number in range(10, 15)])
    assert len(cli(*late, "--from", "earliest").out.splitlines()) == 5
    early = ("consume", events.name, "--group", f"{name}-early")
    assert len(cli(*early).out.splitlines()) == 15
    assert cli(*early).out == ""
    unnamed = cli("consume", events.name, "--group", "")
    assert (unnamed.code, unnamed.out, unnamed.line("hint: ")[:7]) == (2, "", "--group")


def test_a_group_whose_offset_has_aged_out_is_reported_and_skips_nothing(topic, cli, name):
    events = topic(partitions=1)
    events.produce([{"id": number} for number in range(10)])
    assert cli("consume", events.name, "--group", name, "--count", 2).code == 0
    events.truncate(before=5)
    gone = cli("consume", events.name, "--group", name)
    assert (gone.code, gone.out, f"groups delete {name}" in gone.err) == (4, "", True)


def test_what_was_read_of_a_file_that_ends_badly_is_sent_and_reported(topic, cli, tmp_path):
    events = topic(partitions=1)
    packed = tmp_path / "values.gz"
    packed.write_bytes(gzip.compress(b"one\ntwo\n" + uuid.uuid4().bytes * 1000)[:-20])
    sent = cli("produce", events.name, "--file", packed)
    assert (sent.code, f"{packed} cannot be read" in sent.err) == (2, True)
    told = int(sent.err.split(" acknowledged")[0].split()[-1])
    assert told == len(records(cli("consume", events.name, "--json"))) >= 2


def test_a_packed_file_that_is_damaged_is_reported(topic, cli, tmp_path):
    packed = tmp_path / "values.gz"
    damaged = bytearray(gzip.compress(b"one\ntwo\n"))
    damaged[10] = 0xFF  # the first block is of a kind that there is not
    packed.write_bytes(damaged)
    for verb in (("produce", topic().name, "--file", packed), ("replay", packed, "--to", "any")):
        done = cli(*verb)
        assert (done.code, done.line("error: ").startswith(f"{packed} cannot be read")) == (2, True)


def test_a_count_bounds_one_reading_and_the_next_goes_on_behind_it(topic, cli, name):
    events = topic(partitions=1)
    events.produce([{"id": number} for number in range(250)])
    read = [cli("consume", events.name, "--group", name, "--count", 100).out.splitlines() for _ in range(3)]
    assert [len(some) for some in read] == [100, 100, 50]
    assert [json.loads(line)["id"] for some in read for line in some] == list(range(250))


def test_a_file_of_options_may_hold_settings_of_other_programs(topic, cli, tmp_path):
    events = topic(partitions=1)
    events.produce([{"id": 1}])
    file = tmp_path / "client.properties"
    file.write_text("max.poll.records=5\nenable.auto.commit=true\nauto.offset.reset=latest\ngroup.id=somebody\n")
    assert cli("consume", events.name, "--options-file", file).out == '{"id": 1}\n'
    assert "somebody" not in cli("groups", "list").out


def test_a_file_for_producers_in_java_serves_ours_and_what_is_typed_counts_more(topic, cli, lines, tmp_path):
    events = topic(partitions=1)
    file = tmp_path / "producer.properties"
    file.write_text(
        "key.serializer=org.apache.kafka.common.serialization.StringSerializer\nbuffer.memory=33554432\n"
        "transactional.id=orders\npartitioner.class=org.example.Partitioner\nlinger.ms=20000\nacks=0\n"
        "partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor\n"
    )
    arguments = ("produce", events.name, "--file", lines("a"), "--options-file", file)
    began = time.monotonic()
    sent = cli(*arguments, "--linger", 0, "--acks", "all")
    assert (sent.code, sent.err.startswith("1 acknowledged, 0 failed")) == (0, True), sent.err
    assert time.monotonic() - began < 15
    unasked = cli(*arguments, "--linger", 0)
    assert (unasked.code, "without acknowledgement" in unasked.err) == (0, True)
    for group in ((), ("--group", f"java-{events.name}")):
        read = cli("consume", events.name, "--options-file", file, "--count", 1, *group)
        assert (read.code, read.out) == (0, "a\n"), read.err


def test_only_committed_records_are_read_also_at_the_end_of_the_log(topic, cli):
    events = topic(partitions=1)
    events.produce_in_transaction([{"id": 1}], commit=True)
    events.produce_in_transaction([{"id": 2}], commit=False)
    assert cli("consume", events.name).out == '{"id": 1}\n'
    dirty = cli("consume", events.name, "--option", "isolation.level=read_uncommitted")
    assert dirty.out == '{"id": 1}\n{"id": 2}\n'


def test_a_group_that_read_all_of_a_topic_has_no_lag_and_loses_nothing_when_transactions_end_it(topic, cli, name):
    """What a transaction leaves behind its records is no record."""
    events = topic(partitions=1)
    events.produce_in_transaction([{"id": 1}, {"id": 2}], commit=True)

    def lag():
        (group,) = json.loads(cli("groups", "describe", name, "--json").out)
        return group["lag"]

    assert len(cli("consume", events.name, "--group", name, "--count", 1).out.splitlines()) == 1
    assert lag() == 2
    assert len(cli("consume", events.name, "--group", name).out.splitlines()) == 1
    assert lag() == 0
    events.produce_in_transaction([{"id": 3}], commit=False)
    assert (cli("consume", events.name, "--group", name).out, lag()) == ("", 0)
    events.truncate(before=5)
    events.produce([{"id": 4}])
    assert cli("consume", events.name, "--group", name).out == '{"id": 4}\n'


def test_who_follows_sees_new_records_new_partitions_and_new_topics(topic, cli, name, tmp_path):
    assert cli("topics", "create", f"{name}-a").code == 0
    with HeadraceProcess(
        "consume", "--pattern", f"{name}-.*", "--follow", "--from", "earliest", cwd=tmp_path
    ) as reader:
        for sent in (f"{name}-a", f"{name}-b"):
            cli("topics", "create", sent, "--if-not-exists")
            cli("produce", sent, "--sample", "words", "--count", 5)
        cli("topics", "alter", f"{name}-a", "--partitions", 2)
        cli("produce", f"{name}-a", "--sample", "words", "--count", 5, "--partition", 1)
        reader.wait_for(lambda: len(reader.out.splitlines()) >= 15)
        reader.process.send_signal(signal.SIGINT)
        done = reader.finish()
    assert (done.code, len(done.out.splitlines())) == (0, 15)


def test_a_producer_whose_output_is_closed_sends_on_and_reports_totals(topic, cli, lines):
    events = topic(partitions=1)
    typed = f"{sys.executable} -m headrace.cli.main produce {events.name} -v --file {lines(*range(5000))} | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {typed}"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.startswith(b"5,000 acknowledged, 0 failed")) == (0, True), done.stderr
    assert len(cli("consume", events.name).out.splitlines()) == 5000


def test_what_is_closed_is_reported(topic, kafka):
    for verb, closed in (("produce", "<&-"), ("consume", ">&-")):
        typed = f"{sys.executable} -m headrace.cli.main {verb} {topic().name} {closed}"
        done = subprocess.run(["bash", "-c", typed], capture_output=True, timeout=60, check=False)
        assert (done.returncode, b"is closed" in done.stderr, b"Traceback" in done.stderr) == (2, True, False)


def test_a_reader_whose_output_is_closed_ends_silently(topic, kafka):
    events = topic(partitions=1)
    events.produce([{"id": number, "text": "x" * 500} for number in range(5000)])
    typed = f"{sys.executable} -m headrace.cli.main consume {events.name} | head -2"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {typed}"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, len(done.stdout.splitlines()), done.stderr) == (0, 2, b"")


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume",),
        ("consume", "a", "--pattern", "b"),
        ("consume", "a", "--follow", "--until", "caught-up"),
        ("consume", "a", "--group", "g", "--partition", 0),
        ("consume", "a", "--from", "somewhere"),
        ("consume", "a", "--from", "1000"),
        ("consume", "a", "--show", "colour"),
        ("produce", "a", "--sample", "words", "--file", "f"),
        ("produce", "a", "--sample", "words", "--start", "someday"),
        ("produce", "a", "--seed", 2),
        ("produce", "a", "--sample", "words", "--malformed", 0.5),
        ("produce", "a", "--sample", "words", "--every", "1s"),
        ("produce", "a", "--header", "nothing"),
        ("produce", "a", "--key-separator", ""),
        ("produce", "a", "--timeout", "inf"),
        ("produce", "a", "--sample", "words", "--start", "99999999999d"),
        ("produce", "a", "--sample", "words", "--start", "999999d"),
        ("produce", "", "--sample", "words"),
        ("topics", "delete", ""),
        ("topics", "alter", "", "--partitions", 2),
        ("produce", "a", "--option", "no.such.option=1", "--sample", "words"),
        ("replay", __file__, "--to", "a", "--speed", "fast"),
        ("replay", __file__, "--to", "a"),
    ],
    ids=lambda given: " ".join(map(str, given[2:])) or "nothing" if isinstance(given, tuple) else None,
)
def test_wrong_use_is_an_error_with_a_hint(cli, topic, arguments, tmp_path):
    if "no.such.option=1" in arguments:
        arguments = (arguments[0], topic().name, *arguments[2:])
    done = cli(*arguments)
    assert done.code == 2
    assert done.line("error: ")
    assert done.line("hint: ")
