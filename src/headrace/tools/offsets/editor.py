"""Reads and changes the offsets of one pipeline, through its store and its cluster."""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from headrace.core.state import AuditEntry, RunLease, State
from headrace.errors import ConfigError, OffsetConflict
from headrace.kafka.cluster import Cluster, Clusters
from headrace.runtime.heartbeat import INTERVAL, lease_timeout, liveness, seconds_to_wait
from headrace.support.paths import private_directory, state_directory, write_private
from headrace.support.polling import wait_until
from headrace.text import counted
from headrace.tools.offsets import targets
from headrace.tools.offsets.imports import from_kafka_group, from_spark_json, to_spark_json
from headrace.types import QUERY_TOPICS, Progress, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from headrace.core.offset_store import OffsetStore
    from headrace.core.planner import TopicLog
    from headrace.kafka.source import Kafka
    from headrace.tools.offsets.targets import OffsetChange, ResetTarget

FORCE_SECONDS = 30.0
"""Seconds that a forced change waits for a moment between two batches of a live run."""
_POLL_INTERVAL = 0.5


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one partition. `committed` is None if it has no committed offset: then all its records are unread.
    `seconds` is the age of the oldest unread record, None if unknown."""

    at: TopicPartition
    committed: int | None
    end: int
    records: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Undo:
    """Undoes a change: a file with the offset of each partition before and after it."""

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
        private_directory(directory)
        seconds, rest = divmod(time.time_ns(), 10**9)  # read once: the newest file is the last one by name
        path = directory / f"{self.pipeline}-{time.strftime('%Y%m%dT%H%M%S', time.localtime(seconds))}-{rest:09}.json"
        before, after = to_spark_json(self.before), to_spark_json(self.after)
        write_private(path, json.dumps({"pipeline": self.pipeline, "before": before, "after": after}, indent=2))
        return path


def undo_directory() -> Path:
    return state_directory() / "undo"


class OffsetEditor:
    """`with OffsetEditor(…) as editor:` opens the store. It connects to the cluster only when a method needs it.

    Unless it `changes` offsets, it creates nothing: a store that does not exist has no offsets, and `missing` says so.
    """

    def __init__(
        self,
        pipeline: str,
        store: OffsetStore,
        bootstrap: str | None,
        options: Mapping[str, str],
        topics: Sequence[str] = (),
        sources: Sequence[Kafka] = (),
        *,
        changes: bool = False,
    ) -> None:
        self.missing: str | None = None
        self._changes = changes
        self.pipeline = pipeline
        self.store = store
        self._bootstrap = bootstrap
        self._options = options
        self._topics = tuple(topics)
        self._sources = sources

    def __enter__(self) -> Self:
        if self._changes:
            self.store.open(self.pipeline)
        else:
            self.missing = self.store.open_for_reading(self.pipeline)
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    @property
    def state(self) -> State:
        return State() if self.missing else self.store.read()[0]

    def refuse_missing(self) -> None:
        """ConfigError if the store does not exist."""
        if self.missing:
            raise ConfigError(
                f"{self.pipeline} has no offsets: {self.missing}", hint="run the pipeline first, or check the path"
            )

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

    def logs(self, progress: Progress) -> dict[str, TopicLog]:
        stored = {at.topic for at in progress.offsets if not at.topic.startswith(QUERY_TOPICS)}
        topics = self._topics or tuple(sorted(stored))
        if not topics:
            raise ConfigError(f"{self.pipeline} has no offsets in {self.store!r} yet", hint="--topic clicks")
        return self.cluster.logs_of(topics)

    def lag(self) -> list[Lag]:
        return self.lag_of(self.state.progress)

    def lag_of(self, progress: Progress) -> list[Lag]:
        """The lag of each partition. Reads only from the cluster, so it also works after the store was closed."""
        logs = self.logs(progress)
        ends = {at: end for log in logs.values() for at, end in log.ends.items()}
        beginnings = {at: first for log in logs.values() for at, first in log.beginnings.items()}
        position = {at: progress.offsets.get(at, beginnings.get(at, 0)) for at in ends}
        unread_from = {at: offset for at, offset in position.items() if ends[at] > offset}
        produced, now = self.cluster.times(unread_from), time.time()
        lags = []
        for at, end in sorted(ends.items()):
            committed = progress.offsets.get(at)
            records = max(0, end - position[at])
            age = max(0.0, now - produced[at]) if at in produced else (0.0 if not records else None)
            lags.append(Lag(at, committed, end, records, age))
        return lags

    def plan(self, target: ResetTarget, only: Iterable[TopicPartition] = ()) -> tuple[Progress, list[OffsetChange]]:
        progress = self.state.progress
        logs = self.logs(progress)
        partitions = [at for log in logs.values() for at in log.ends]
        at_time = self.cluster.at_time(partitions, target.time) if target.time else {}
        return progress, targets.moves(progress, logs, target, at_time, only)

    def plan_offsets(self, offsets: Mapping[TopicPartition, int]) -> tuple[Progress, list[OffsetChange]]:
        progress = self.state.progress
        logs = self.cluster.logs_of(sorted({at.topic for at in offsets}))
        return progress, targets.to_offsets(progress, logs, offsets)

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        if self._bootstrap is None:
            raise ConfigError("the cluster is not known", hint="--bootstrap localhost:9092")
        return from_kafka_group(self._bootstrap, self._options, group)

    def execute(
        self,
        progress: Progress,
        moves: Sequence[OffsetChange],
        action: str,
        note: str,
        *,
        outside: bool = False,
        force: bool = False,
    ) -> Path:
        """Change the offsets as `moves` lists them. Return the undo file, which is written before the change.

        With `force` also during a live run, between two of its batches: within a batch it is unknown which of its rows
        are stored. The store refuses the next batch of the run.
        """
        forced = force and self.active_run() is not None
        if not force:
            self.refuse_while_running()
            self._refuse_pending(progress, {move.at: move.after for move in moves})
        if negative := [move for move in moves if move.after < 0]:
            raise ConfigError(f"{negative[0].at} cannot go to {negative[0].after}: offsets begin at 0")
        if not outside and (rejected := [move for move in moves if move.outside]):
            first, *others = rejected
            more = f"; the same for {counted(len(others), 'more partition')}" if others else ""
            raise ConfigError(
                f"{first.at} has offsets {first.beginning} to {first.end}; {first.after} lies outside{more}",
                hint="--outside sets it anyway; --to earliest or --to latest stay inside",
            )
        after = {move.at: move.after for move in moves}
        logs = self.cluster.logs_of(sorted({at.topic for at in after}))
        after.update(targets.stale(progress, logs, after))
        topic_ids = {topic: log.topic_id for topic, log in logs.items()}
        deadline = time.monotonic() + FORCE_SECONDS
        while True:
            if forced:
                progress = self._between_batches(deadline)
            before = {at: progress.offsets[at] for at in after if at in progress.offsets}
            undo = Undo(self.pipeline, before, after).write()
            try:
                self.store.set_offsets(progress, after, audit_entry(action, before, after, note), topic_ids)
            except OffsetConflict:
                undo.unlink()
                if not forced or time.monotonic() >= deadline:
                    raise
                continue  # the live run has begun a batch in the meantime
            return undo

    def active_run(self) -> RunLease | None:
        """The run that is or may be active. A run whose process cannot be checked counts while it sends heartbeats."""
        run = self.store.lease()
        if run is None or (state := liveness(run)) == "dead":
            return None
        if state == "alive" or time.time() - run.beat < lease_timeout(run):
            return run
        return run if self._sends_heartbeats(run) else None

    def _sends_heartbeats(self, run: RunLease) -> bool:
        """Whether a new heartbeat arrives. The clocks of two machines may differ, so an old time proves nothing."""
        latest: RunLease | None = run

        def changed() -> bool:
            nonlocal latest
            latest = self.store.lease()
            return latest is None or not run.is_same_run(latest) or latest.beat != run.beat

        return (
            wait_until(changed, min(seconds_to_wait(run, time.time()), 2 * INTERVAL), _POLL_INTERVAL)
            and latest is not None
        )

    def refuse_while_running(self) -> None:
        if run := self.active_run():
            raise OffsetConflict(
                f"{self.pipeline} is running: {run}, last heartbeat {time.time() - run.beat:.0f} s ago",
                hint=f"stop it first: kill {run.pid} on {run.host}; or --force, which stops it at its next batch",
            )

    def _refuse_pending(self, progress: Progress, moved: Mapping[TopicPartition, int]) -> None:
        """OffsetConflict if the change would drop a pending batch only in part.

        A partition of the batch that is not moved, or is moved into its range, would be read again as another batch.
        """
        pending = progress.pending
        if pending is None:
            return
        if split := [r for r in pending.ranges if r.at not in moved or r.start < moved[r.at] < r.until]:
            raise OffsetConflict(
                f"batch {pending.id} of {self.pipeline} was begun and may be stored in part;"
                f" {split[0]} of it would be read again and stored twice",
                hint="run the pipeline once, which finishes it; or move all partitions of the batch; or --force",
            )

    def _between_batches(self, deadline: float) -> Progress:
        """The progress of a live run at a moment when no batch is pending."""
        progress = self.state.progress

        def between_batches() -> bool:
            nonlocal progress
            progress = self.state.progress
            return progress.pending is None

        if not wait_until(between_batches, deadline - time.monotonic(), 0.01) and progress.pending is not None:
            raise OffsetConflict(
                f"batch {progress.pending.id} of {self.pipeline} is being written, and may be stored in part",
                hint="try again, or stop the run: the next start finishes its pending batch",
            )
        return progress


def audit_entry(
    action: str, before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int], note: str
) -> AuditEntry:
    operator = f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()})"
    return AuditEntry(time.time(), operator, action, before, after, note)
