"""Records that cannot be stored, from the topic to the dead letters and back, through whole runs."""

import json
import os
import sqlite3
import time
import uuid
from contextlib import closing

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

import headrace as hr
from headrace import events, sinks, stores
from headrace.core.dead_letters import DeadLetter, RecordId
from headrace.dev import Kafka
from headrace.errors import BadRecord, ConfigError, RetriableError
from headrace.kafka.cluster import Cluster
from headrace.kafka.dead_letter_topic import DeadLetterTopic
from headrace.testing.committed_records import read_committed
from headrace.testing.fixtures import Topic
from headrace.tools.dead_letters import DeadLetterAdmin
from headrace.types import TopicPartition
from support import raw_headers
from support.interleaving import meanwhile

GOOD = [json.dumps({"id": n, "text": f"t{n}"}).encode() for n in range(10)]
BAD = [b"{broken", b"", b'{"id": "many"}', b"\xff\xfe"]


@pytest.fixture
def mixed(topic):
    """Ten good records and four bad ones between them, with keys and headers."""
    where = topic(partitions=1)
    for at, value in enumerate([*GOOD[:5], *BAD, *GOOD[5:]]):
        where.produce([value], key=f"k{at}".encode(), headers=[("trace", bytes([at]))])
    return where


@pytest.fixture(params=["postgres", "sqlite", "duckdb"])
def sink(request, tmp_path):
    if request.param == "postgres":
        table = f"t_{uuid.uuid4().hex[:12]}"
        return sinks.Postgres(request.getfixturevalue("postgres").address, table, create=True)
    kind = {"sqlite": sinks.SQLite, "duckdb": sinks.DuckDB}[request.param]
    return kind(tmp_path / "rows.db", "rows")


def pipeline(where, sink, **more):
    return hr.Pipeline(
        **{
            "name": f"p-{uuid.uuid4().hex[:8]}",
            "source": hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT, text STRING")),
            "sink": sink,
            "guarantee": "exactly-once",
            **more,
        }
    )


def test_bad_records_go_to_a_table_of_the_sink_whole_and_the_good_ones_are_stored(mixed, sink, spark):
    seen = []
    made = pipeline(mixed, sink, dead_letters=f"dead_{uuid.uuid4().hex[:8]}")
    made.run(until="caught-up", session=spark, observer=seen.append, fail_fast=True)

    letters = DeadLetterAdmin(made).letters()
    assert [letter.value for letter in letters] == BAD
    assert [letter.origin for letter in letters] == [RecordId(mixed.name, 0, 5 + n) for n in range(4)]
    assert [letter.key for letter in letters] == [b"k5", b"k6", b"k7", b"k8"]
    assert [letter.headers for letter in letters] == [(("trace", bytes([5 + n])),) for n in range(4)]
    assert all(letter.error and letter.place == "decoding" and letter.timestamp for letter in letters)
    assert [e.count for e in seen if isinstance(e, events.RecordsQuarantined)] == [4]
    with sink.open(made.name) as opened, opened.offsets.transaction() as connection:
        table = opened._write_mode.name
        assert sorted(connection.execute(f"SELECT id FROM {table}").fetchall()) == [(n,) for n in range(10)]


def test_text_that_the_database_refuses_goes_to_the_dead_letters_with_the_original_bytes(topic, postgres, spark):
    """PostgreSQL has no NUL in text, and no surrogate or NUL in jsonb: nothing to be retried for ever."""
    where = topic(partitions=2)
    values = [b'{"id": 1, "text": "fine"}', b'{"id": 2, "text": "nul \\u0000 here"}', b'{"id": 3, "text": "fine too"}']
    where.produce(values)
    table = f"t_{uuid.uuid4().hex[:12]}"
    made = pipeline(where, sinks.Postgres(postgres.address, table, create=True), dead_letters=f"{table}_dead")
    made.run(until="caught-up", session=spark, fail_fast=True)
    (letter,) = DeadLetterAdmin(made).letters()
    assert letter.value == values[1]
    assert "0x00" in letter.error
    assert letter.place == f"table {table}"
    with psycopg.connect(postgres.address) as connection:
        assert sorted(connection.execute(f"SELECT id FROM {table}").fetchall()) == [(1,), (3,)]


COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "200",
    "delete.retention.ms": "100",
}


def test_a_refused_record_that_was_compacted_away_leaves_a_letter_that_says_so(topic, postgres, spark):
    """The record is read again for its letter, and is gone by then: without a letter it would vanish silently."""
    where = topic(partitions=1, config=COMPACTED)
    where.produce([b'{"id": 1, "text": "nul \\u0000 here"}'], key=b"same")
    where.produce([b'{"id": 2, "text": "fine"}'], key=b"other")
    table = f"t_{uuid.uuid4().hex[:12]}"
    made = pipeline(where, sinks.Postgres(postgres.address, table, create=True), dead_letters=f"{table}_dead")

    def compact():
        deadline = time.monotonic() + 60
        while any(record.offset() == 0 for record in read_committed(where.bootstrap, where.name)):
            assert time.monotonic() < deadline, "the broker does not compact"
            where.produce([b'{"id": 3, "text": "newer"}'], key=b"same")
            time.sleep(0.3)

    with meanwhile("postgres: staged", compact):
        made.run(until="caught-up", session=spark, fail_fast=True)
    (letter,) = DeadLetterAdmin(made).letters()
    assert letter.origin == RecordId(where.name, 0, 0)
    assert (letter.key, letter.value, letter.timestamp) == (None, None, None)
    assert "0x00" in letter.error and "the broker has deleted the record" in letter.error
    with psycopg.connect(postgres.address) as connection:
        assert {(1,)}.isdisjoint(connection.execute(f"SELECT id FROM {table}").fetchall())


def test_a_value_that_the_database_refuses_stops_a_run_without_dead_letters_and_says_why(topic, postgres, spark):
    where = topic(partitions=1)
    where.produce([b'{"id": 1, "text": "nul \\u0000 here"}'])
    table = f"t_{uuid.uuid4().hex[:12]}"
    made = pipeline(where, sinks.Postgres(postgres.address, table, create=True))
    with pytest.raises(BadRecord, match="rejects a row") as stopped:
        made.run(until="caught-up", session=spark)  # not fail_fast: a retry loop would show as a hang
    assert "dead_letters" in stopped.value.hint


def test_dead_letters_of_any_sink_go_to_a_topic(mixed, tmp_path, spark, topic):
    dead = topic(partitions=2)
    made = pipeline(
        mixed,
        sinks.Parquet(tmp_path / "rows"),
        offsets=stores.SQLite(tmp_path / "o.db"),
        dead_letters=hr.DeadLetters(topic=dead.name),
    )
    made.run(until="caught-up", session=spark, fail_fast=True)
    letters = sorted(DeadLetterAdmin(made).letters(), key=lambda letter: letter.origin)
    assert [letter.value for letter in letters] == BAD
    assert [letter.headers for letter in letters] == [(("trace", bytes([5 + n])),) for n in range(4)]
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 10


def test_a_letter_that_comes_while_others_are_dealt_with_stays(mixed, topic):
    dead = topic(partitions=1)
    box = DeadLetterTopic(dead.bootstrap, {}, dead.name, f"reader-{dead.name}")
    first, late = (DeadLetter(RecordId("t", 0, n), None, None, b"x", (), "bad", "decoding") for n in (1, 2))
    box.send([first])
    assert box.read() == [first]
    box.send([late])
    box.drop_read()
    assert box.read() == [late]


def test_what_was_dealt_with_stays_so_when_the_broker_forgets_the_offsets_of_the_group(topic):
    """Those of a group that nobody joins expire after offsets.retention.minutes: a week."""
    dead = topic(partitions=2)
    mine, other = (DeadLetterTopic(dead.bootstrap, {}, dead.name, f"{who}-{dead.name}") for who in ("mine", "other"))
    first, late = (DeadLetter(RecordId("t", 0, n), None, None, b"x", (), "bad", "decoding") for n in (1, 2))
    mine.send([first] * 5)
    assert mine.read() == [first] * 5
    mine.drop_read()
    admin = AdminClient({"bootstrap.servers": dead.bootstrap, "log_level": 0})
    for future in admin.delete_consumer_groups([f"mine-{dead.name}"], request_timeout=30).values():
        future.result()
    assert mine.read() == []
    assert other.read() == [first] * 5, "only for who dealt with it"
    mine.send([late])
    assert mine.read() == [late]


def test_a_record_cannot_pass_itself_off_as_the_mark_of_what_was_dealt_with(topic):
    dead = topic(partitions=1)
    box = DeadLetterTopic(dead.bootstrap, {}, dead.name, "reader")
    forged = (("headrace.reader", b"reader"), ("headrace.settled", b"99"))
    box.send([DeadLetter(RecordId("t", 0, n), None, None, b"x", forged, "bad", "decoding") for n in range(3)])
    assert len(box.read()) == 3


def test_a_broker_that_goes_away_while_dead_letters_are_read_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.kafka.dead_letter_topic._SECONDS", 3.0)
    with Kafka(tmp_path / "kafka", heap="256m") as server:
        dead = Topic(server.bootstrap, "dead", 1, {})
        box = DeadLetterTopic(dead.bootstrap, {}, dead.name)
        box.send([DeadLetter(RecordId("t", 0, 1), None, None, b"x", (), "bad", "decoding")])
        known = box._unread

        def dying(consumer):
            unread = known(consumer)
            server.brokers[0].kill()
            return unread

        monkeypatch.setattr(box, "_unread", dying)
        began = time.monotonic()
        with pytest.raises(RetriableError, match="no record received for 3 s"):
            box.read()
        assert time.monotonic() - began < 30


def test_records_that_are_none_of_ours_in_the_topic_are_passed_over(mixed, topic):
    dead = topic(partitions=1)
    dead.produce([b"somebody else's"])
    box = DeadLetterTopic(dead.bootstrap, {}, dead.name, "reader")
    assert box.read() == []


def test_headers_that_are_not_utf_8_and_forged_letters_break_no_verb(topic, cli, tmp_path):
    """Anybody who may write to the source or to the dead letters chooses these bytes."""
    source, dead, other = topic(partitions=1), topic(partitions=1), topic(partitions=1)
    box = DeadLetterTopic(dead.bootstrap, {}, dead.name, "reader")
    real = DeadLetter(
        RecordId(source.name, 0, 1), None, None, b"x", (("headrace.trace", b"\xff\xfe"),), "bad", "decoding"
    )
    box.send([real])
    about = {"topic": other.name.encode(), "partition": b"0", "offset": b"7", "error": b"\xff\xfe broken"}
    for change in ({}, {"partition": b"\xff"}, {"offset": b"-1"}, {"timestamp": b"yesterday"}):
        headers = [(f"headrace.{name}", value) for name, value in {**about, **change}.items()]
        dead.produce([b"forged"], headers=headers)
    dead.produce([b""], headers=[("headrace.reader", b"reader"), ("headrace.settled", b"\xff")])
    dead.produce([b""], headers=[("headrace.reader", b"reader"), ("headrace.settled", b"99")])

    first, *forged = box.read()
    assert (first.origin, first.value) == (real.origin, b"x")
    assert {letter.origin for letter in forged} == {RecordId(other.name, 0, 7)}
    assert {letter.error for letter in forged} == {"\ufffd\ufffd broken"}

    file = tmp_path / "letters.toml"
    place = f'{{ topic = "{dead.name}" }}'
    given = {"name": f"p-{uuid.uuid4().hex[:8]}", "bootstrap": source.bootstrap, "topic": source.name}
    file.write_text(TOML.format(**given, dead=place, file=tmp_path / "rows.db"))
    assert "2 dead letters" in cli("dead-letters", "list", str(file)).out
    assert cli("dead-letters", "show", str(file), "--all").code == 0
    for how in ([], ["--execute"]):
        refused = cli("dead-letters", "replay", str(file), "--all", *how)
        assert (refused.code, "does not read this topic" in refused.err) == (2, True)
        assert refused.line("hint: ").startswith("--to TOPIC")
    assert (end(source), end(other)) == (0, 0)
    assert cli("dead-letters", "replay", str(file), "--all", "--to", other.name, "--execute").code == 0
    assert (end(source), end(other)) == (0, 2)
    assert "0 dead letters" in cli("dead-letters", "list", str(file)).out


def test_header_names_that_are_not_utf_8_break_no_verb(topic, cli, tmp_path):
    source, dead = topic(partitions=1), topic(partitions=1)
    box = DeadLetterTopic(dead.bootstrap, {}, dead.name, "reader")
    # After many others: Python calls the client in another way by then.
    dead.produce([b"other"] * 100, headers=[("a", b"1")])
    raw_headers.produce(dead.bootstrap, dead.name, b"forged", [(b"\xff\xfe", b"1"), (b"headrace.topic", b"t")])
    box.send([DeadLetter(RecordId(source.name, 0, 1), None, None, b"x", (), "bad", "decoding")])
    assert [letter.value for letter in box.read()] == [b"x"]
    box.drop_read()
    assert box.read() == []

    file = tmp_path / "letters.toml"
    given = {"name": f"p-{uuid.uuid4().hex[:8]}", "bootstrap": source.bootstrap, "topic": source.name}
    file.write_text(TOML.format(**given, dead=f'{{ topic = "{dead.name}" }}', file=tmp_path / "rows.db"))
    assert "1 dead letter" in cli("dead-letters", "list", str(file)).out
    assert cli("consume", dead.name, "--bootstrap", dead.bootstrap, "-v").code == 0


@pytest.mark.parametrize("max_bytes", [33_036, 33_035, 100])
def test_bad_records_of_more_bytes_than_the_limit_are_kept_without_them_and_stop_nothing(
    topic, tmp_path, spark, max_bytes
):
    where, seen = topic(partitions=1), []
    where.produce([b"{broken" + b"x" * 10_000] * 3, headers=[("large", b"y" * 1_000)])
    where.produce([b"{small", *GOOD])
    dead = hr.DeadLetters(table="dead", max_bytes=max_bytes)
    made = pipeline(where, sinks.SQLite(tmp_path / "rows.db", "rows"), dead_letters=dead)
    made.run(until="caught-up", session=spark, observer=seen.append)
    letters = DeadLetterAdmin(made).letters()
    assert [letter.origin.offset for letter in letters] == [0, 1, 2, 3]
    assert sum(letter.size for letter in letters) <= max_bytes
    whole = {33_036: [0, 1, 3], 33_035: [0, 1, 3], 100: [3]}[max_bytes]
    assert [letter.origin.offset for letter in letters if not letter.left_out] == whole
    assert letters[3].value == b"{small"
    assert all(
        "11,012 bytes of key, value and headers are left out" in letter.error for letter in letters if letter.left_out
    )
    (told,) = [event for event in seen if isinstance(event, events.RecordsQuarantined)]
    assert (told.count, told.left_out) == (4, 4 - len(whole))
    with pytest.raises(ConfigError, match="does not hold the record") as refused:
        DeadLetterAdmin(made).replay(letters, None)
    assert f"--from {where.name}:0:{2 if len(whole) == 3 else 0}" in refused.value.hint


def test_a_letter_that_is_larger_than_its_topic_takes_goes_without_its_bytes_and_stops_nothing(topic, tmp_path, spark):
    """Whoever may produce a record that is as large as the source takes could stop the pipeline for ever else."""
    where, dead = topic(partitions=1), topic(partitions=1, config={"max.message.bytes": "100000"})
    together, compressible = [b"{" + os.urandom(40_000) for _ in range(5)], b"{" + b"x" * 900_000
    bad = [*together, b"{" + os.urandom(150_000), compressible]
    where.produce([*bad, *GOOD])
    made = pipeline(where, sinks.SQLite(tmp_path / "rows.db", "rows"), dead_letters=hr.DeadLetters(topic=dead.name))
    made.run(until="caught-up", session=spark, fail_fast=True)
    box = DeadLetterAdmin(made)
    letters = {letter.origin.offset: letter for letter in box.letters()}
    assert sorted(letters) == list(range(len(bad)))
    assert [offset for offset, letter in letters.items() if letter.record_missing] == [len(together)]
    assert all(letter.value == bad[offset] for offset, letter in letters.items() if not letter.record_missing)
    gone = letters[len(together)]
    assert "150,001 bytes of key, value and headers are left out" in gone.error
    with pytest.raises(ConfigError, match="does not hold the record"):
        box.replay(list(letters.values()), None)


@pytest.mark.parametrize(("limit", "stops"), [(4, False), (3, True), (0.5, False), (0.1, True), (0, True)])
def test_more_bad_records_than_the_limit_stop_the_pipeline_with_nothing_stored(mixed, tmp_path, spark, limit, stops):
    made = pipeline(
        mixed, sinks.SQLite(tmp_path / "rows.db", "rows"), dead_letters=hr.DeadLetters(table="dead", limit=limit)
    )
    if not stops:
        made.run(until="caught-up", session=spark)
        assert len(DeadLetterAdmin(made).letters()) == 4
        return
    with pytest.raises(BadRecord, match=r"expected at most . dead letters? in one batch") as stopped:
        made.run(until="caught-up", session=spark)
    assert f"{mixed.name}[0] offset 5" in stopped.value.message
    assert DeadLetterAdmin(made).letters() == []
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        assert connection.execute("SELECT count(*) FROM rows").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"dead_letters": "t"}, "no tables of its own"),
        ({"dead_letters": hr.DeadLetters(topic="clicks")}, "would be read again"),
        ({"dead_letters": 7}, "dead_letters: expected .*DeadLetters, got 7"),
    ],
)
def test_dead_letters_that_cannot_work_are_refused_when_the_pipeline_is_built(how, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        hr.Pipeline(
            name="p",
            source=hr.Kafka("x:1", topics=["clicks"]),
            sink=sinks.Parquet(tmp_path / "rows"),
            guarantee="exactly-once",
            **how,
        )


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"table": "a", "topic": "b"},
        {"table": ""},
        {"table": "t", "limit": -1},
        {"table": "t", "limit": 2.0},
        {"table": "t", "max_bytes": 0},
    ],
)
def test_dead_letters_that_make_no_sense_are_refused(how):
    with pytest.raises(ConfigError):
        hr.DeadLetters(**how)


def test_a_format_that_drops_or_keeps_bad_records_leaves_none_for_the_dead_letters(tmp_path):
    source = hr.Kafka("x:1", topics=["t"], format=hr.Json("id INT", on_error="drop"))
    with pytest.raises(ConfigError, match="not both"):
        hr.Pipeline(
            name="p",
            source=source,
            sink=sinks.SQLite(tmp_path / "r.db", "r"),
            guarantee="exactly-once",
            dead_letters="d",
        )


# The command line


def end(where):
    at = TopicPartition(where.name, 0)
    return Cluster(where.bootstrap, {}).ends([at])[at]


TOML = """
name = "{name}"
guarantee = "exactly-once"
dead_letters = {dead}
[source]
kafka = "{bootstrap}"
topics = ["{topic}"]
format = {{ json = "id BIGINT, text STRING" }}
[sink]
sqlite = "{file}"
table = "rows"
"""


@pytest.fixture
def filed(mixed, tmp_path, spark):
    def make(dead='"dead"'):
        file = tmp_path / "app.toml"
        place = {"bootstrap": mixed.bootstrap, "topic": mixed.name, "file": tmp_path / "rows.db"}
        file.write_text(TOML.format(name=f"p-{uuid.uuid4().hex[:8]}", dead=dead, **place))
        from headrace.runtime.config import load

        load(str(file)).pipeline.run(until="caught-up", session=spark, fail_fast=True)
        return str(file)

    return make


def test_list_and_show_say_what_is_there(filed, mixed, cli):
    file = filed()
    listed = cli("dead-letters", "list", file)
    assert listed.code == 0, listed
    assert f"{mixed.name}:0:5" in listed.out
    assert "4 dead letters in table dead" in listed.out
    shown = cli("dead-letters", "show", file, f"{mixed.name}:0:5", f"{mixed.name}:0:8")
    assert "{broken" in shown.out
    assert "0xfffe" in shown.out
    machine = json.loads(cli("dead-letters", "list", file, "--json", "--limit", "2").out)
    assert [entry["offset"] for entry in machine] == [5, 6]


def test_dead_letters_are_listed_as_json_without_control_characters(filed, topic, cli):
    dead = topic(partitions=1)
    file = filed(f'{{ topic = "{dead.name}", limit = 0.9 }}')
    hostile = (("\x1b]0;owned\x07h", b"\x1b[2J"),)
    letters = [
        DeadLetter(RecordId("t", 0, n), None, None, b"\x1b", hostile, "bad \x1b[31m", "decoding") for n in range(60)
    ]
    DeadLetterTopic(dead.bootstrap, {}, dead.name).send(letters)
    assert len(json.loads(cli("dead-letters", "list", file, "--json").out)) == 64
    for verb in (("list", file), ("show", file, "--all"), ("drop", file, "--all")):
        shown = cli("dead-letters", *verb)
        assert (shown.code, "\x1b" in shown.out) == (0, False)
    assert "14 more (--limit)" in cli("dead-letters", "list", file).out


def test_replay_sends_the_record_back_as_it_was_and_drops_its_letter(filed, mixed, spark, cli):
    file = filed()
    one = f"{mixed.name}:0:5"
    looked = cli("dead-letters", "replay", file, one)
    assert "1 record would be sent" in looked.out
    assert end(mixed) == 14
    done = cli("dead-letters", "replay", file, one, "--execute")
    assert done.code == 0, done
    assert end(mixed) == 15
    assert "3 dead letters" in cli("dead-letters", "list", file).out
    # It is as bad as before, so the next run finds it again, as a record of its own.
    from headrace.runtime.config import load

    load(file).pipeline.run(until="caught-up", session=spark, fail_fast=True)
    assert f"{mixed.name}:0:14" in cli("dead-letters", "list", file).out


def test_a_record_that_is_named_twice_is_sent_back_once(filed, mixed, cli):
    done = cli("dead-letters", "replay", filed(), f"{mixed.name}:0:5", f"{mixed.name}:0:05", "--execute")
    assert (done.code, "1 record sent back" in done.out, end(mixed)) == (0, True, 15)


def test_letters_are_kept_if_the_topic_they_are_to_go_to_is_not_there(filed, mixed, cli):
    file, missing = filed(), f"{mixed.name}-x"
    refused = cli("dead-letters", "replay", file, "--all", "--to", missing, "--execute")
    assert (refused.code, refused.line("hint: ")) == (2, f"did you mean {mixed.name}?")
    assert "4 dead letters" in cli("dead-letters", "list", file).out
    assert missing not in cli("topics", "list", "--bootstrap", mixed.bootstrap).out
    other = Topic(mixed.bootstrap, missing, 1, {})
    assert cli("dead-letters", "replay", file, "--all", "--to", missing, "--execute").code == 0
    assert end(other) == 4


def test_drop_forgets_the_chosen_ones(filed, mixed, cli):
    file = filed()
    cli("dead-letters", "drop", file, f"{mixed.name}:0:5", "--execute")
    assert "3 dead letters" in cli("dead-letters", "list", file).out
    cli("dead-letters", "drop", file, "--all", "--execute")
    assert "0 dead letters" in cli("dead-letters", "list", file).out


def test_a_topic_lets_go_of_all_or_none(filed, mixed, topic, cli):
    dead = topic(partitions=1)
    file = filed(f'{{ topic = "{dead.name}", limit = 0.9 }}')
    assert f"4 dead letters in topic {dead.name}" in cli("dead-letters", "list", file).out
    for verb in ("drop", "replay"):
        refused = cli("dead-letters", verb, file, f"{mixed.name}:0:5", "--execute")
        assert (refused.code, "expected --all" in refused.err) == (2, True)
    assert end(mixed) == 14, "nothing may be sent that cannot be let go of"
    cli("dead-letters", "drop", file, "--all", "--execute")
    assert "0 dead letters" in cli("dead-letters", "list", file).out


@pytest.mark.parametrize("which", [[], ["nonsense"], ["t:0:999"], ["t:0:5", "--all"]])
def test_a_letter_that_is_not_there_is_reported(filed, which, cli):
    answered = cli("dead-letters", "show", filed(), *which)
    assert answered.code == 2
    assert "hint:" in answered.err


def test_a_pipeline_without_dead_letters_says_so(tmp_path, cli):
    file = tmp_path / "app.toml"
    text = TOML.format(name="p", dead='"d"', bootstrap="x:1", topic="t", file=tmp_path / "r.db")
    file.write_text(text.replace('dead_letters = "d"\n', ""))
    answered = cli("dead-letters", "list", str(file))
    assert (answered.code, "has no dead letters" in answered.err) == (2, True)
