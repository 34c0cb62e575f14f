"""A batch that is not as expected is not published, by any sink, and is still there to be read."""

import uuid

import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.errors import BatchRefused, ConfigError


def pipeline(where, sink, expect, tmp_path, name=None, **more):
    return hr.Pipeline(
        name=name or f"p-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("user STRING, n INT")),
        sink=sink,
        expect=expect,
        guarantee="at-least-once",
        offsets=None if isinstance(sink, sinks.TransactionalSink) else stores.SQLite(tmp_path / "offsets.db"),
        limits=hr.Limits(max_records=100),
        **more,
    )


def run(made, spark):
    return made.run(until="caught-up", session=spark)


@pytest.fixture
def users(topic):
    """Ninety-eight of a hundred have a name."""
    where = topic(partitions=2)
    where.produce([{"user": None if n in (40, 41) else f"u{n}", "n": n} for n in range(100)])
    return where


def test_a_batch_as_expected_is_published(users, spark, tmp_path):
    sink = sinks.Memory()
    run(pipeline(users, sink, {"user IS NOT NULL": 0.98, "n >= 0": 1}, tmp_path), spark)
    assert len(sink.rows) == 100


def test_a_share_that_is_met_exactly_is_met(topic, spark, tmp_path):
    """55 of 100 is less than 0.55 * 100 to a computer."""
    where, sink = topic(partitions=1), sinks.Memory()
    where.produce([{"user": "u" if n < 55 else None, "n": n} for n in range(100)])
    run(pipeline(where, sink, {"user IS NOT NULL -- a comment": 0.55}, tmp_path), spark)
    assert len(sink.rows) == 100


def test_a_batch_that_is_not_says_which_condition_the_share_and_some_rows_and_stores_nothing(users, spark, tmp_path):
    sink = sinks.Memory()
    made = pipeline(users, sink, {"n < 100": 1, "user IS NOT NULL": 0.99}, tmp_path)
    with pytest.raises(BatchRefused) as refused:
        run(made, spark)
    assert sink.rows == []
    message = refused.value.message
    assert "user IS NOT NULL: 98.00% of 100 rows, expected at least 99.00%" in message
    assert "{'user': None, 'n': 40}" in message
    assert "n < 100" not in message


def test_the_batch_is_still_to_be_read_when_the_expectation_is_corrected(users, spark, tmp_path):
    sink, name = sinks.Memory(), f"p-{uuid.uuid4().hex[:8]}"
    with pytest.raises(BatchRefused):
        run(pipeline(users, sink, {"user IS NOT NULL": 1}, tmp_path, name), spark)
    run(pipeline(users, sink, {"user IS NOT NULL": 0.9}, tmp_path, name), spark)
    assert len(sink.rows) == 100


def test_a_sink_that_would_commit_by_partition_publishes_nothing_of_a_refused_batch(users, spark, tmp_path, postgres):
    table = f"t_{uuid.uuid4().hex[:12]}"
    sink = sinks.Postgres(postgres.address, table, create=True)
    made = pipeline(users, sink, {"n <> 1": 1}, tmp_path, transform=lambda rows: rows.select("user", "n"))
    with pytest.raises(BatchRefused):
        run(made, spark)
    with sink.offsets.open(made.name) as opened:
        assert set(opened.load().offsets.values()) == {0}
        with opened.transaction() as connection:
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]


def test_a_row_for_which_the_condition_is_null_does_not_meet_it(users, spark, tmp_path):
    with pytest.raises(BatchRefused, match=r"98\.00%"):
        run(pipeline(users, sinks.Memory(), {"length(user) > 0": 0.99}, tmp_path), spark)


def test_a_batch_without_rows_passes(users, spark, tmp_path):
    sink = sinks.Memory()
    run(pipeline(users, sink, {"n > 1000": 1}, tmp_path, transform=lambda rows: rows.where("n < 0")), spark)
    assert sink.rows == []


def test_a_condition_that_does_not_fit_the_rows_is_refused_before_anything_is_read(users, spark, tmp_path):
    made = pipeline(users, sinks.Memory(), {"age > 0": 1}, tmp_path)
    with pytest.raises(ConfigError, match="age > 0") as refused:
        run(made, spark)
    assert "user, n" in refused.value.hint
