"""`headrace topics` and `headrace groups` on a real broker, as typed."""

import json
import signal
import time
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.dev import Kafka
from support.command_line import SOON, HeadraceProcess


@pytest.fixture(autouse=True)
def cluster(kafka, monkeypatch, tmp_path):
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))


@pytest.fixture
def name():
    return f"tools-{uuid.uuid4().hex[:12]}"


def answer(done):
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_topic_is_made_looked_at_changed_and_deleted(cli, name):
    week = 7 * 24 * 3600 * 1000
    made = cli("topics", "create", name, "--partitions", 4, "--config", f"retention.ms={week}")
    assert (made.code, made.out) == (0, f"{name}: 4 partitions, replication 1\n")
    assert "7 d" in next(line for line in cli("topics", "list").out.splitlines() if line.startswith(name))
    assert cli("topics", "create", name, "--partitions", 4).code == 2
    again = cli("topics", "create", name, "--partitions", 3, "--if-not-exists")
    assert (again.code, "3 requested" in again.out) == (0, True)

    assert cli("topics", "alter", name, "--config", "retention.bytes=1073741824", "--unset", "retention.ms").code == 0
    (described,) = answer(cli("topics", "describe", name, "--json"))
    assert described["settings"]["retention.bytes"] == {
        "name": "retention.bytes",
        "value": "1073741824",
        "source": "topic",
        "hidden": False,
    }
    assert described["settings"]["retention.ms"]["source"] == "default"
    assert described["settings"]["min.insync.replicas"]["source"] == "broker"
    assert [(p["number"], p["leader"], p["replicas"], p["in_sync"]) for p in described["partitions"]] == [
        (number, 1, [1], [1]) for number in range(4)
    ]

    shown = cli("topics", "delete", name)
    assert (shown.code, "--execute" in shown.out) == (0, True)
    assert answer(cli("topics", "list", name, "--json"))
    assert cli("topics", "delete", name, "--execute").code == 0
    assert answer(cli("topics", "list", name, "--json")) == []


def test_sections_tell_the_settings_that_somebody_made_and_all_of_them_if_asked(cli, topic):
    events = topic(partitions=2, config={"cleanup.policy": "compact"})
    shown = cli("topics", "describe", events.name).out
    assert shown.startswith(f"{events.name}\n")
    assert "\nconfiguration\n" in shown
    assert "\npartitions\n" in shown
    assert "the last of each key" in shown
    assert "segment.bytes" not in shown
    assert "segment.bytes" in cli("topics", "describe", events.name, "--all-settings").out


def test_a_regex_matches_whole_names_and_internal_topics_only_by_their_prefix(cli, topic, name):
    for ending in ("a", "b", "ab"):
        assert cli("topics", "create", f"{name}-{ending}").code == 0
    assert [t["topic"] for t in answer(cli("topics", "list", f"{name}-.", "--json"))] == [f"{name}-a", f"{name}-b"]
    assert [t["topic"] for t in answer(cli("topics", "describe", f"{name}-ab?", "--json"))] == [
        f"{name}-a",
        f"{name}-ab",
    ]
    assert cli("topics", "delete", f"{name}-.", "--execute").code == 2
    gone = cli("topics", "delete", f"{name}-.", "--regex", "--execute")
    assert (gone.code, "2 topics" in gone.out) == (0, True)
    assert [t["topic"] for t in answer(cli("topics", "list", f"{name}.*", "--json"))] == [f"{name}-ab"]
    assert cli("topics", "list", "[").code == 2
    cli("consume", topic().name, "--group", name)  # so that there are offsets
    for meant in (("__consumer.*",), (".*offsets", "--all")):
        assert "__consumer_offsets" in [t["topic"] for t in answer(cli("topics", "list", *meant, "--json"))]
    assert "__consumer_offsets" not in cli("topics", "list", ".*").out


def test_what_cannot_be_is_reported_with_a_hint(cli, topic, name, monkeypatch):
    missing = cli("topics", "describe", name)
    assert (missing.code, missing.line("hint: ")) == (2, f"headrace topics create {name} --partitions 3")
    assert "Unknown topic config name: nonsense" in cli("topics", "create", name, "--config", "nonsense=1").err
    assert cli("topics", "alter", name).code == 2
    cli("consume", topic().name, "--group", name)  # so that there are offsets
    assert "an internal topic" in cli("topics", "delete", "__consumer_offsets", "--execute").err
    monkeypatch.delenv("KAFKA_BOOTSTRAP")
    unsaid = cli("topics", "list")
    assert (unsaid.code, "--bootstrap" in unsaid.err) == (2, True)


def test_keys_move_when_partitions_are_added_and_the_tool_warns(cli, topic):
    events = topic(partitions=3)

    def partition_of_a_new_record():
        done = cli("produce", events.name, "--sample", "trades", "--count", 1, "-v")
        return done.out.split("[")[1].split("]")[0]

    before = partition_of_a_new_record()
    for wrong in (("--partitions", 2, "--config", "retention.ms=1000"), ("--partitions", 8, "--config", "nonsense=1")):
        assert cli("topics", "alter", events.name, *wrong).code == 2
    (same,) = answer(cli("topics", "describe", events.name, "--json"))
    assert (len(same["partitions"]), same["settings"]["retention.ms"]["source"]) == (3, "default")
    grown = cli("topics", "alter", events.name, "--partitions", 8)
    assert (grown.code, "keys move" in grown.err) == (0, True)
    assert partition_of_a_new_record() != before


def test_our_offset_and_lag_are_those_of_the_group_or_the_pipeline_that_is_named(cli, topic, name, tmp_path):
    from headrace import stores
    from headrace.types import Batch, Range, TopicPartition

    events = topic(partitions=2)
    events.produce([{"id": number} for number in range(100)])
    assert cli("consume", events.name, "--group", name, "--count", 30).code == 0
    (described,) = answer(cli("topics", "describe", events.name, "--group", name, "--json"))
    assert sum(partition["lag"] for partition in described["partitions"]) == 70
    assert sum(partition["offset"] for partition in described["partitions"]) == 30

    file = tmp_path / "p.toml"
    file.write_text(
        f'name = "{name}"\nguarantee = "at-least-once"\n[source]\nkafka = "{events.bootstrap}"\n'
        f'topics = ["{events.name}"]\n[sink]\nparquet = "{tmp_path / "out"}"\n[offsets]\nsqlite = "{tmp_path / "o.db"}"'
    )
    with stores.SQLite(tmp_path / "o.db").open(name) as store:
        store.commit(Batch(1, (Range(TopicPartition(events.name, 1), 0, 45),), {events.name: "any"}))
    (described,) = answer(cli("topics", "describe", events.name, "--pipeline", file, "--json"))
    assert [(p["offset"], p["lag"]) for p in described["partitions"]] == [(None, 50), (45, 5)]
    assert "committed" in cli("topics", "describe", events.name, "--pipeline", file).out


def test_a_group_is_described_with_its_offsets_and_deleted_with_execute(cli, topic, name):
    events = topic(partitions=2)
    events.produce([{"id": number} for number in range(10)])
    assert cli("consume", events.name, "--group", name).code == 0
    events.produce([{"id": 10}], partition=0)
    (group,) = answer(cli("groups", "describe", name, "--json"))
    assert (group["state"], group["members"], group["lag"], group["headrace"]) == ("empty", [], 1, False)
    assert [(p["offset"], p["end"], p["lag"]) for p in group["partitions"]] == [(5, 6, 1), (5, 5, 0)]
    assert name in cli("groups", "list").out
    hostile = f"{name}-\x1b]0;title\x07\n"
    assert cli("consume", events.name, "--group", hostile).code == 0
    for shown in (cli("groups", "list"), cli("groups", "describe", hostile), cli("groups", "delete", hostile)):
        assert f"{name}-\\x1b]0;title\\x07\\n" in shown.out
        assert "\x1b" not in shown.out
    assert "--execute" in cli("groups", "delete", name).out
    assert cli("groups", "delete", name, "--execute").code == 0
    assert cli("groups", "describe", name).code == 2


def test_the_group_of_a_pipeline_is_marked(cli, topic, name):
    from headrace import stores
    from headrace.types import Batch, Range, TopicPartition

    events = topic(partitions=1)
    events.produce([{"id": 1}])
    with stores.Kafka(events.bootstrap, group=name).open("svc") as store:
        store.commit(Batch(1, (Range(TopicPartition(events.name, 0), 0, 1),), {events.name: "any"}))
    (group,) = answer(cli("groups", "list", name, "--json"))
    assert (group["headrace"], group["lag"]) == (True, 0)
    assert "a Headrace pipeline" in cli("groups", "delete", name).out


def test_an_offset_past_the_end_is_marked(cli, topic, name):
    events = topic(partitions=1)
    consumer = Consumer({"bootstrap.servers": events.bootstrap, "group.id": name})
    consumer.commit(offsets=[TopicPartition(events.name, 0, 7)], asynchronous=False)
    consumer.close()
    for shown in (cli("groups", "describe", name), cli("topics", "describe", events.name, "--group", name)):
        assert "PAST THE END" in shown.out


def test_members_that_keep_what_they_read_while_sharing_are_joined_in_their_way(cli, topic, name, tmp_path):
    events = topic(partitions=4)
    arguments = ("consume", events.name, "--group", name, "--follow", "--from", "earliest", "--json")
    ours = ("--option", "partition.assignment.strategy=cooperative-sticky")
    with (
        HeadraceProcess(*arguments, *ours, cwd=tmp_path) as first,
        HeadraceProcess("produce", events.name, "--sample", "words", "--rate", 300, cwd=tmp_path) as producer,
    ):
        first.wait_for(lambda: first.out)
        strange = cli("consume", events.name, "--group", name)
        assert (strange.code, "cooperative-sticky" in strange.line("hint: ")) == (2, True)
        with HeadraceProcess(*arguments, *ours, cwd=tmp_path) as second:
            second.wait_for(lambda: second.out)
            producer.process.send_signal(signal.SIGINT)
            sent = int(producer.finish().err.removeprefix("stopped: ").split()[0].replace(",", ""))
            second.wait_for(lambda: len((first.out + second.out).splitlines()) >= sent)
            for reader in (first, second):
                reader.process.send_signal(signal.SIGINT)
            done = [first.finish(), second.finish()]
    places = [(r["partition"], r["offset"]) for one in done for r in map(json.loads, one.out.splitlines())]
    assert ([one.code for one in done], len(places), len(set(places))) == ([0, 0], sent, sent)
    newer = cli("consume", events.name, "--group", f"{name}-new", "--option", "group.protocol=consumer")
    assert (newer.code, len(newer.out.splitlines())) == (0, sent)


def test_members_share_the_partitions_and_print_every_record_once(cli, topic, name, tmp_path):
    """Three consumers of four partitions, two of them latecomers while records flow: two, one and one."""
    events = topic(partitions=4)
    arguments = ["consume", events.name, "--group", name, "--follow", "--from", "earliest", "--json"]
    flow = ("produce", events.name, "--sample", "words", "--rate", 500, "--count", 2000, "--seed", 4)
    readers = [HeadraceProcess(*arguments, "--option", "client.id=reader-0", cwd=tmp_path)]
    try:
        with HeadraceProcess(*flow, cwd=tmp_path) as producer:
            readers[0].wait_for(lambda: readers[0].out)
            readers += [HeadraceProcess(*arguments, "--option", f"client.id=reader-{n}", cwd=tmp_path) for n in (1, 2)]
            owned, deadline = {}, time.monotonic() + SOON
            while sorted(map(len, owned.values())) != [1, 1, 2]:
                assert time.monotonic() < deadline, owned
                (group,) = answer(cli("groups", "describe", name, "--json"))
                owned = {member["client"]: member["partitions"] for member in group["members"]}
            assert set(owned) == {"reader-0", "reader-1", "reader-2"}
            places = sorted(place for places in owned.values() for place in places)
            assert places == [[events.name, number] for number in range(4)]
            assert "is in use" in cli("groups", "delete", name, "--execute").err
            assert producer.finish().code == 0
        assert cli("produce", events.name, "--sample", "words", "--count", 200).code == 0
        readers[0].wait_for(lambda: sum(len(reader.out.splitlines()) for reader in readers) >= 2200)
        for reader in readers:
            reader.process.send_signal(signal.SIGTERM)
        done = [reader.finish() for reader in readers]
    finally:
        for reader in readers:
            reader.__exit__()
    assert [one.code for one in done] == [0, 0, 0]
    assert all(one.out for one in done)
    printed = [json.loads(line) for one in done for line in one.out.splitlines()]
    (group,) = answer(cli("groups", "describe", name, "--json"))
    ends = {p["partition"]: p["end"] for p in group["partitions"]}
    assert sorted((r["partition"], r["offset"]) for r in printed) == [(p, o) for p in range(4) for o in range(ends[p])]
    assert [p["offset"] for p in group["partitions"]] == [ends[number] for number in range(4)]


def test_brokers_that_die_show_and_no_record_is_lost_silently(cli, tmp_path):
    quick = {"broker.session.timeout.ms": 2000, "broker.heartbeat.interval.ms": 500}
    with Kafka(tmp_path / "two", brokers=2, heap="256m", options=quick) as kafka:
        safe, alone, address = "safe", "alone", ["--bootstrap", kafka.brokers[0].address]
        assert cli("topics", "create", safe, "--partitions", 4, "--replication", 2, *address).code == 0
        assert cli("topics", "create", alone, "--partitions", 4, "--replication", 1, *address).code == 0
        assert cli("produce", safe, "--sample", "words", "--count", 2000, *address).code == 0
        (before,) = answer(cli("topics", "describe", safe, "--json", *address))
        assert {partition["leader"] for partition in before["partitions"]} == {1, 2}
        kafka.brokers[1].kill()

        def trouble(topic):
            (described,) = answer(cli("topics", "describe", topic, "--json", *address))
            return [partition["trouble"] for partition in described["partitions"]]

        deadline = time.monotonic() + SOON
        asked = AdminClient({"bootstrap.servers": kafka.brokers[0].address, "log_level": 0})
        while len(asked.list_topics(timeout=10).brokers) == 2:  # the cluster has not noticed yet
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while trouble(safe) != ["under-replicated"] * 4 or trouble(alone).count("no leader") != 2:
            assert time.monotonic() < deadline
        shown = cli("topics", "describe", alone, *address).out
        assert "NO LEADER" in shown
        assert "unknown number" in cli("topics", "delete", alone, *address).out
        (described,) = answer(cli("topics", "describe", alone, "--json", *address))
        led = next(partition["number"] for partition in described["partitions"] if partition["leader"])
        assert cli("consume", alone, "--partition", led, *address).code == 0
        read = cli("consume", safe, *address)
        assert (read.code, len(read.out.splitlines())) == (0, 2000), read.err

        arguments = ("produce", safe, "--sample", "words", "--rate", 20, "--timeout", 1, *address)
        reading = ("consume", safe, "--group", "followers", "--follow", "--from", "earliest", *address)
        with (
            HeadraceProcess(*arguments, "--errors", tmp_path / "kept", "-v", cwd=tmp_path) as producer,
            HeadraceProcess(*reading, cwd=tmp_path) as follower,
        ):
            follower.wait_for(lambda: follower.out)
            producer.wait_for(lambda: producer.out.count("offset") >= 5)
            kafka.brokers[0].kill()
            producer.wait_for(lambda: "failed:" in producer.err)
            follower.process.send_signal(signal.SIGINT)
            assert follower.finish(20).code == 1
            producer.process.send_signal(signal.SIGINT)
            done = producer.finish()
        failed = int(done.err.split(" failed (")[0].split()[-1])
        assert (done.code, failed) == (1, len((tmp_path / "kept").read_text().splitlines()))
        assert done.err.splitlines()[-1].startswith(f"stopped: {done.out.count('offset')} acknowledged")


def test_every_acknowledged_record_is_read_back_though_a_broker_died_meanwhile(cli, tmp_path):
    quick = {"broker.session.timeout.ms": 2000, "broker.heartbeat.interval.ms": 500}
    with Kafka(tmp_path / "two", brokers=2, heap="256m", options=quick) as kafka:
        address = ["--bootstrap", kafka.brokers[0].address]
        assert cli("topics", "create", "safe", "--partitions", 4, "--replication", 2, *address).code == 0
        flow = ("produce", "safe", "--sample", "words", "--rate", 300, "--acks", "all", "-v", "--timeout", 60)
        with HeadraceProcess(*flow, *address, cwd=tmp_path) as producer:
            producer.wait_for(lambda: producer.out.count("offset") >= 300)
            kafka.brokers[1].kill()
            seen = producer.out.count("offset")
            partitions = [f"safe[{number}]" for number in range(4)]

            def all_go_on():
                since = producer.out.splitlines()[seen + 1000 :]
                return all(any(line.startswith(partition) for line in since) for partition in partitions)

            producer.wait_for(all_go_on)
            producer.process.send_signal(signal.SIGINT)
            done = producer.finish()
        assert (done.code, ", 0 failed" in done.err) == (0, True), done.err
        read = cli("consume", "safe", "--json", *address)
        found = {f"safe[{r['partition']}] offset {r['offset']}" for r in map(json.loads, read.out.splitlines())}
        assert (read.code, set(done.out.splitlines()) - found) == (0, set())


def test_several_producers_feed_one_topic_and_every_group_reads_all_of_it(cli, topic, name):
    events = topic(partitions=3)
    events.produce([{"service": "web"}] * 20)
    for seed in (1, 2):
        assert cli("produce", events.name, "--sample", "words", "--count", 20, "--seed", seed).code == 0
    for group in (f"{name}-1", f"{name}-2"):
        assert len(cli("consume", events.name, "--group", group).out.splitlines()) == 60
