"""The manual batch loop, killed at every step: no record is missing, and a repeated batch has the same records."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from crash.runs import die_at_every_point
from headrace.testing.shared_jvm import gateway_environment

pytestmark = pytest.mark.timeout(600)


def test_a_manual_loop_killed_at_every_step_loses_nothing_and_repeats_only_the_batch_in_flight(spark, topic, tmp_path):
    where = topic(partitions=2)
    environment = {**os.environ, **gateway_environment(spark)}
    command = [sys.executable, str(Path(__file__).with_name("loop.py")), str(tmp_path), where.bootstrap, where.name]
    sent = 0

    def feed():
        nonlocal sent
        where.produce([{"n": number} for number in range(sent, sent + 60)])
        sent += 60

    def run(*spared):
        return subprocess.run(
            [*command, *spared], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    died = die_at_every_point(run, feed, most=20)
    assert {"loop: before the work", "loop: after the work", "loop: committed", "stream: before begin"} <= set(died)
    with sqlite3.connect(tmp_path / "rows.db") as database:
        once = [n for (n,) in database.execute("SELECT n FROM once")]
        each = [n for (n,) in database.execute("SELECT n FROM each")]
        (repeated,) = database.execute(
            "SELECT count(DISTINCT batch) FROM (SELECT batch, n FROM each GROUP BY batch, n HAVING count(*) > 1)"
        ).fetchone()
        (again,) = database.execute(
            "SELECT count(*) FROM (SELECT n FROM each GROUP BY n HAVING count(DISTINCT batch) > 1)"
        ).fetchone()
    print(f"{len(died)} kills, {sent} records, {len(each) - len(set(each))} done twice")
    assert sorted(once) == list(range(sent))
    assert set(each) == set(range(sent))
    # Only the kill between the work and the commit causes a repeat, and only of that batch.
    assert repeated == 1
    assert again == 0
