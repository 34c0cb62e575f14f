"""The long crash suite: hundreds of kills for all guarantees, sinks and stores, and one verdict per guarantee.

python -m tests.crash.long [--each 30] [--only KIND] [--seed N]

Most kills hit a random crash point of a driver that shares one JVM with the others, so that many fit into minutes;
the rest hit the whole process group of `headrace run`, JVM included, at a random time while records flow. A run that
follows a kill may itself be killed while it recovers.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM, default_int_handler, signal

# Pytest has tests/ on its path, so this folder is the package `crash` there as well.
sys.path.insert(0, str(Path(__file__).parents[1]))

from crash.feed import Feed
from crash.pipelines import ALL, CASES, GUARANTEES, SERVERS, STORE_CASES, TARGET, Case
from crash.runs import Death, drained, kill_at_random
from headrace import dev
from headrace.dev.jvm import SMALL_JVM
from headrace.spark import session, task_retries
from headrace.testing import Difference
from headrace.testing.crash import require_success, run
from headrace.testing.fixtures import Topic, metastore
from support.hdfs import Hdfs

EVERY = CASES + STORE_CASES
WHOLE = 2
"""Kills of a whole process group in each case."""
OUTSIDE = {"anchor", "before begin", "delivered"}
"""Points without a batch in flight: a kill there interrupts nothing."""


@dataclass
class Outcome:
    """The kills of one case, and the rows in its sink afterwards."""

    case: Case
    points: Counter = field(default_factory=Counter)
    groups: list[Death] = field(default_factory=list)
    difference: Difference | None = None

    @property
    def kills(self):
        return self.points.total() + len(self.groups)

    @property
    def in_recovery(self):
        at_points = sum(count for point, count in self.points.items() if point.startswith("replay: "))
        return at_points + sum(death.in_recovery for death in self.groups)

    @property
    def inside(self):
        at_points = sum(count for point, count in self.points.items() if point not in OUTSIDE)
        return at_points + sum(death.batch_open for death in self.groups)

    @property
    def faults(self):
        """The reasons why this case failed; empty if it succeeded."""
        found = self.difference
        checks = {
            "no kill": self.kills == 0,
            "no kill with a batch in hand": self.inside == 0,
            "rows missing": found.missing and not self.case.may_miss,
            "rows stored twice": found.duplicate and not self.case.may_repeat,
            "rows never sent": found.phantom,
        }
        return [fault for fault, holds in checks.items() if holds]


def main():
    arguments = argparse.ArgumentParser(prog="python -m tests.crash.long", description=__doc__.splitlines()[0])
    arguments.add_argument("--each", type=int, default=30, help="kills of each case")
    arguments.add_argument("--only", action="append", choices=sorted({kind for kind, _ in EVERY}), metavar="KIND")
    arguments.add_argument("--seed", type=int, help="repeat an earlier run's random choices")
    given = arguments.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    cases = [case for case in EVERY if not given.only or case[0] in given.only]
    say(f"seed {seed}: {len(cases)} cases, {given.each} kills each")

    signal(SIGTERM, default_int_handler)  # like Ctrl-C: end the started processes
    directory = Path(tempfile.mkdtemp(prefix="headrace-crash-"))
    keep = True
    try:
        outcomes = suite(directory, cases, given.each, seed)
        keep = any(outcome.faults for outcome in outcomes)
        return verdict(outcomes)
    except KeyboardInterrupt:
        keep = False
        say("interrupted: everything the suite started is stopped")
        return 1
    finally:
        if keep:
            print(f"kept: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def suite(directory, cases, kills, seed):
    outcomes = []
    with ExitStack() as servers:
        kafka = servers.enter_context(dev.Kafka(directory / "kafka", heap="512m"))
        os.environ["HEADRACE_STATE"] = str(directory / "state")
        os.environ["KAFKA_BOOTSTRAP"] = kafka.bootstrap
        os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(SMALL_JVM))
        needed = {server for kind, _ in cases for server in ALL[kind].servers}
        for kind in (
            dev.Cassandra,
            dev.DynamoDB,
            dev.HBase,
            Hdfs,
            dev.Mongo,
            dev.Postgres,
            dev.Redis,
            dev.ZooKeeper,
        ):
            if kind.name not in needed:
                continue
            say(f"starting {kind.name}")
            server = servers.enter_context(kind(directory / kind.name))
            os.environ[SERVERS[kind.name]] = server.address
        spark = session.create({"spark.driver.memory": "1g", **metastore(directory), **task_retries.OFF})
        try:
            for number, (kind, guarantee) in enumerate(cases):
                began = time.monotonic()
                # Each case has its own random numbers, so that it can be repeated without the previous ones.
                chance = random.Random(f"{seed} {kind} {guarantee}")
                topic = Topic(kafka.bootstrap, f"crash-{number}", ALL[kind].partitions, {})
                place = directory / topic.name
                place.mkdir()
                case = Case(
                    kind=kind,
                    guarantee=guarantee,
                    bootstrap=kafka.bootstrap,
                    topic=topic.name,
                    directory=str(place),
                )
                outcome = killed(case, Feed(kafka.bootstrap, topic.name, topic.partitions), kills, chance, spark)
                outcomes.append(outcome)
                progress(f"{number + 1}/{len(cases)}", outcome, time.monotonic() - began)
        finally:
            spark.stop()
    return outcomes


def killed(case, feed, kills, chance, spark):
    """Kill runs of one case until there were `kills` kills, then let it finish and compare."""
    outcome = Outcome(case)
    whole = min(WHOLE, kills // 4) if case.parts.random_kills else 0
    when = set(chance.sample(range(kills), whole))
    idle = 0
    while outcome.kills < kills and idle < 20:
        limited = case.limited(chance.choice((10, 40, 1_000_000)))
        if outcome.kills in when:
            with feed.flowing(rate=200):
                outcome.groups.append(kill_at_random(limited, feed, chance))
            continue
        feed.send(chance.randrange(20, 100))
        # Small numbers are more likely: they hit the recovery from the previous kill.
        nth = min(chance.randrange(1, 16), chance.randrange(1, 16))
        done = run(TARGET, f"--die-at={nth}", environment=limited.environment, spark=spark)
        if done.returncode == -SIGKILL:
            outcome.points[done.stdout.splitlines()[-1]] += 1
            idle = 0
        else:
            require_success(done)
            idle += 1  # it finished before its point
    outcome.difference = feed.compare(drained(case, spark))
    return outcome


def progress(number, outcome, seconds):
    faults = f", FAILED: {', '.join(outcome.faults)}" if outcome.faults else ""
    say(
        f"[{number}] {outcome.case}: {outcome.kills} kills"
        f" ({len(outcome.groups)} of whole groups, {outcome.inside} inside a batch, {outcome.in_recovery} in recovery,"
        f" {len(outcome.points)} different points),"
        f" {outcome.difference}, {seconds:.0f} s{faults}"
    )


def verdict(outcomes):
    """Print one line per guarantee. Return 1 if one is broken or was never tested."""
    for guarantee in GUARANTEES:
        if not (mine := [outcome for outcome in outcomes if outcome.case.guarantee == guarantee]):
            continue
        kills = sum(outcome.kills for outcome in mine)
        missing = sum(outcome.difference.missing for outcome in mine)
        duplicate = sum(outcome.difference.duplicate for outcome in mine)
        say(f"{guarantee}: {kills} kills, {missing} missing, {duplicate} duplicate")
    return int(any(outcome.faults for outcome in outcomes))


def say(line):
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
