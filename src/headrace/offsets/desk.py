"""One pipeline's offsets on the desk: its store and its cluster, opened to be looked at and changed."""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import psutil

from headrace.errors import ConfigError, OffsetConflict
from headrace.kafka.cluster import Cluster, Clusters
from headrace.offsets import targets
from headrace.offsets.imports import from_kafka_group, from_spark_json, to_spark_json
from headrace.paths import state_directory
from headrace.stores.state import Change, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from headrace.kafka.source import Kafka
    from headrace.offsets.targets import Move, Target
    from headrace.planner import Log
    from headrace.stores.base import OffsetStore
    from headrace.stores.state import State
    from headrace.types import Progress, TopicPartition

HEARD_WITHIN = 120.0
"""Seconds after its last sign for which a run on another machine counts as alive; it signs every 30."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one partition is behind. `seconds` is the age of the oldest unread record, None if not known."""

    at: TopicPartition
    committed: int
    end: int
    records: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Undo:
    """What takes a change back: a file that says where each partition stood before and after."""

    pipeline: str
    before: Mapping[TopicPartition, int]
    after: Mapping[TopicPartition, int]

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                raw["pipeline"], from_spark_json(raw["before"], str(path)), from_spark_json(raw["after"], str(path))
            )
        except (OSError, KeyError, json.JSONDecodeError) as error:
            raise ConfigError(f"{path} is not an undo file: {error}", hint=f"ls {undo_directory()}") from error

    def write(self) -> Path:
        directory = undo_directory()
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.pipeline}-{time.strftime('%Y%m%dT%H%M%S')}-{time.time_ns() % 10**9:09}.json"
        before, after = to_spark_json(self.before), to_spark_json(self.after)
        path.write_text(json.dumps({"pipeline": self.pipeline, "before": before, "after": after}, indent=2))
        return path


def undo_directory() -> Path:
    return state_directory() / "undo"


class Desk:
    """`with Desk(…) as desk:` opens the store; the cluster is asked only when something needs it."""

    def __init__(
        self,
        pipeline: str,
        store: OffsetStore,
        bootstrap: str | None,
        options: Mapping[str, str],
        topics: Sequence[str] = (),
        sources: Sequence[Kafka] = (),
    ) -> None:
        self.pipeline = pipeline
        self.store = store
        self._bootstrap = bootstrap
        self._options = options
        self._topics = tuple(topics)
        self._sources = sources

    def __enter__(self) -> Self:
        self.store.open(self.pipeline)
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    @property
    def state(self) -> State:
        return self.store.read()[0]

    @property
    def cluster(self) -> Cluster | Clusters:
        if len(self._sources) > 1:
            return Clusters(self._sources)
        if self._sources:
            (source,) = self._sources
            return Cluster.of(source)
        if self._bootstrap is None:
            raise ConfigError("the cluster is not known", hint="--bootstrap localhost:9092")
        return Cluster(self._bootstrap, self._options)

    def logs(self, progress: Progress) -> dict[str, Log]:
        topics = self._topics or tuple(sorted({at.topic for at in progress.offsets}))
        if not topics:
            raise ConfigError(f"{self.pipeline} has no offsets in {self.store!r} yet", hint="--topic clicks")
        return self.cluster.logs_of(topics)

    def lag(self) -> list[Lag]:
        progress = self.state.progress
        logs = self.logs(progress)
        ends = {at: end for log in logs.values() for at, end in log.ends.items()}
        behind = {at: offset for at, offset in progress.offsets.items() if ends.get(at, 0) > offset}
        produced, now = self.cluster.times(behind), time.time()
        found = []
        for at, end in sorted(ends.items()):
            committed = progress.offsets.get(at, 0)
            records = max(0, end - committed)
            age = max(0.0, now - produced[at]) if at in produced else (0.0 if not records else None)
            found.append(Lag(at, committed, end, records, age))
        return found

    def plan(self, target: Target, only: Iterable[TopicPartition] = ()) -> tuple[Progress, list[Move]]:
        progress = self.state.progress
        logs = self.logs(progress)
        partitions = [at for log in logs.values() for at in log.ends]
        at_time = self.cluster.at_time(partitions, target.time) if target.time else {}
        return progress, targets.moves(progress, logs, target, at_time, only)

    def plan_offsets(self, offsets: Mapping[TopicPartition, int]) -> tuple[Progress, list[Move]]:
        progress = self.state.progress
        logs = self.cluster.logs_of(sorted({at.topic for at in offsets}))
        return progress, targets.to_offsets(progress, logs, offsets)

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        if self._bootstrap is None:
            raise ConfigError("the cluster is not known", hint="--bootstrap localhost:9092")
        return from_kafka_group(self._bootstrap, self._options, group)

    def execute(
        self, progress: Progress, moves: Sequence[Move], action: str, note: str, *, outside: bool = False
    ) -> Path:
        """Change the offsets as the table of `moves` says; returns the undo file, written before the change."""
        self.refuse_while_running()
        if negative := [move for move in moves if move.after < 0]:
            raise ConfigError(f"{negative[0].at} cannot go to {negative[0].after}: offsets begin at 0")
        if not outside and (wrong := [move for move in moves if move.outside]):
            first = wrong[0]
            raise ConfigError(
                f"{first.at} has records {first.beginning} to {first.end}; {first.after} lies outside,"
                f" as do {len(wrong) - 1} more partitions",
                hint="--outside sets it all the same; --to earliest or --to latest stay inside",
            )
        before = {move.at: move.before for move in moves if move.before is not None}
        after = {move.at: move.after for move in moves}
        logs = self.cluster.logs_of(sorted({at.topic for at in after}))
        stale = targets.stale(progress, logs, after)
        before.update({at: progress.offsets[at] for at in stale})
        after.update(stale)
        undo = Undo(self.pipeline, before, after).write()
        topic_ids = {topic: log.topic_id for topic, log in logs.items()}
        self.store.move(progress, after, change(action, before, after, note), topic_ids)
        return undo

    def refuse_while_running(self) -> None:
        if run := live(self.state.run):
            raise OffsetConflict(
                f"{self.pipeline} is running: {run}, last heard of {time.time() - run.beat:.0f} s ago",
                hint=f"stop it first: kill {run.pid}",
            )


def live(run: Run | None) -> Run | None:
    """The run, if it still is: asked of the system on its own machine, told by its last sign elsewhere."""
    if run is None:
        return None
    if run.host == socket.gethostname():
        try:
            # A pid may have been given to somebody else since.
            return run if psutil.Process(run.pid).create_time() <= run.started + 1 else None
        except psutil.NoSuchProcess:
            return None
    return run if time.time() - run.beat < HEARD_WITHIN else None


def change(action: str, before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int], note: str) -> Change:
    who = f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()})"
    return Change(time.time(), who, action, before, after, note)
