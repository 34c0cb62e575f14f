"""The demo's judge: every anomaly is planted by hand and must be found."""

import inspect
import os
import re
import sys
from array import array
from datetime import UTC, datetime, timedelta

import confluent_kafka
import duckdb
import pytest

from headrace.cli.main import demo as verb
from headrace.demo.demo import plan
from headrace.demo.producer import click, produce
from headrace.demo.run_process import Child
from headrace.demo.verify import verify
from headrace.errors import HeadraceError
from support.project import ROOT

README = ROOT / "README.md"
SENT = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture
def judged(tmp_path):
    """Judge a table of clicks, as (id, changes) rows, against a ledger of ids."""

    def judge(rows, ledger):
        path = tmp_path / "clicks.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute(
                'CREATE TABLE clicks (id BIGINT, "user" VARCHAR, page VARCHAR, "at" TIMESTAMPTZ,'
                ' "partition" INTEGER, "offset" BIGINT)'
            )
            for offset, (number, changes) in enumerate(rows):
                row = {**click(number), **changes}
                connection.execute(
                    "INSERT INTO clicks VALUES (?, ?, ?, ?, 0, ?)", [row["id"], row["user"], row["page"], SENT, offset]
                )
        (tmp_path / "ids").write_bytes(array("q", ledger).tobytes())
        # The first two rows were stored after a second, the rest after three.
        marks = [(0, 2, SENT + timedelta(seconds=1)), (0, 100, SENT + timedelta(seconds=3))]
        return verify(path, "clicks", tmp_path / "ids", marks)

    return judge


def plain(*numbers):
    return [(number, {}) for number in numbers]


def test_a_table_that_holds_every_click_once_is_good(judged):
    verdict = judged(plain(*range(10)), range(10))
    assert verdict.good
    assert (verdict.produced, verdict.stored) == (10, 10)
    assert (verdict.p50, verdict.p99) == (3.0, 3.0)


def test_a_missing_click_is_found(judged):
    verdict = judged(plain(*range(9)), range(10))
    assert (verdict.good, verdict.missing) == (False, 1)


def test_a_duplicate_at_the_tail_is_found(judged):
    verdict = judged(plain(*range(10), 9), range(10))
    assert (verdict.good, verdict.duplicate) == (False, 1)


def test_a_click_that_was_never_sent_is_found(judged):
    verdict = judged(plain(*range(11)), range(10))
    assert (verdict.good, verdict.phantom) == (False, 1)


def test_a_damaged_click_is_found(judged):
    verdict = judged([*plain(*range(9)), (9, {"page": "/elsewhere"})], range(10))
    assert (verdict.good, verdict.damaged) == (False, 1)


def test_nothing_at_all_is_not_good(judged):
    assert not judged([], []).good


def test_the_demo_says_what_it_will_do_as_the_readme_does():
    (promised,) = re.findall(r"make demo .*?([\d,]+ clicks), a pipeline that is killed (\w+) times", README.read_text())
    defaults = {name: parameter.default for name, parameter in inspect.signature(verb).parameters.items()}
    said = plan(defaults["events"], defaults["kills"])
    assert promised[0] in said
    assert f"killed { ({'three': 3}[promised[1]]) } times" in said


def test_the_broker_knows_the_producer_of_the_demo_by_name(monkeypatch, tmp_path):
    given = []

    class Producer:
        def __init__(self, settings):
            given.append(settings)

        def flush(self, seconds):
            """Nothing was produced."""

    monkeypatch.setattr(confluent_kafka, "Producer", Producer)
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        produce("h:1", "t", 0, 1, tmp_path / "ledger")
    assert [settings["client.id"] for settings in given] == ["headrace-demo"]


def test_a_pipeline_that_does_not_end_is_an_error_and_is_killed(monkeypatch, tmp_path):
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nexec sleep 100\n")
    endless.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(endless))
    child = Child(tmp_path / "clicks.toml", tmp_path / "log")
    with pytest.raises(HeadraceError, match=r"did not end within 0\.2 s"):
        child.wait(0.2)
    assert not child.alive
