"""The definition of a pipeline. Building one makes all checks that need no server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from headrace.connectors.sqlite.offset_store import SQLite
from headrace.core import delivery
from headrace.core.dead_letters import DeadLetters
from headrace.core.delivery import Guarantee
from headrace.core.expectations import refuse_wrong_conditions
from headrace.core.offset_store import OffsetStore
from headrace.core.planner import Limits
from headrace.core.sink import DeadLetterTableSink, Sink, TransactionalSink
from headrace.core.transforms import refuse_wrong_arguments
from headrace.errors import ConfigError
from headrace.kafka.source import Kafka
from headrace.kafka.source_set import ROWS, known_topics, refuse_skipping, sources_by_name
from headrace.runtime.retry import Retry
from headrace.support.paths import state_directory
from headrace.support.validation import check_choice, check_duration, check_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

    from headrace.core.delivery import Step
    from headrace.core.resource import Resource
    from headrace.events import Observer
    from headrace.runtime.metrics_export import MetricsExporter
    from headrace.runtime.run_handle import Run
    from headrace.runtime.runner import Summary

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: object) -> None:
    """ConfigError unless it is the name of a pipeline, under which its state is stored."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"name: expected letters, digits, dots, dashes and underscores, got {name!r}",
            hint='name="clicks"',
        )


def _unchanged(rows: DataFrame) -> DataFrame:
    return rows


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A named source, transform and sink, with a guarantee.

    `transform` takes a DataFrame of one batch (the decoded columns and the struct `_kafka`) and returns one. `source`
    may be a dict of several, `{"clicks": hr.Kafka(…), "users": hr.Kafka(…)}`; `transform` then takes a dict of frames.
    `offsets` is the offset store: by default the sink itself if it is transactional, else a SQLite file in the state
    directory. `dead_letters` receives records that cannot be stored: the name of a table of the sink, or
    `hr.DeadLetters(…)`; without it such a record stops the pipeline. `retry` configures how failures are repeated.
    A batch that takes longer than `timeout` ("10m", or seconds) is cancelled, and repeated as `retry` says.
    `expect` are SQL conditions on the transform's result, each with the minimum share of rows that meet it,
    `{"user IS NOT NULL": 0.99}`: a batch with a smaller share is not published. `mirror_group` names a consumer group
    that follows the offsets, for tools that show lag.
    """

    name: str
    source: Kafka | Mapping[str, Kafka]
    sink: Sink
    guarantee: Guarantee | Literal["at-most-once", "at-least-once", "exactly-once"]
    transform: Callable[[Any], Any] = _unchanged
    offsets: OffsetStore | None = None
    limits: Limits = field(default_factory=Limits)
    dead_letters: DeadLetters | str | None = None
    expect: Mapping[str, float] | None = None
    mirror_group: str | None = None
    retry: Retry = field(default_factory=Retry)
    timeout: str | float | timedelta | None = None
    engine: Literal["direct"] = "direct"

    def __post_init__(self) -> None:
        check_name(self.name)
        check_instance(f"{self.name}: sink", self.sink, Sink, hint='sinks.DuckDB("app.duckdb", table="clicks")')
        check_instance(f"{self.name}: limits", self.limits, Limits, hint="hr.Limits(max_records=100_000)")
        check_instance(f"{self.name}: retry", self.retry, Retry, hint='hr.Retry(first="1s", longest="1m", attempts=10)')
        if self.timeout is not None:
            timeout = check_duration(f"{self.name}: timeout", self.timeout, hint='timeout="10m"')
            object.__setattr__(self, "timeout", timeout)
        try:
            sources = sources_by_name(self.source)
            refuse_skipping(sources, self.limits.longest_delay)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error.message}", hint=error.hint) from error
        object.__setattr__(self, "source", self.source if isinstance(self.source, Kafka) else sources)
        if self.offsets is not None:
            check_instance(f"{self.name}: offsets", self.offsets, OffsetStore, hint='stores.SQLite("offsets.db")')
        if not callable(self.transform):
            raise ConfigError(f"{self.name}: transform is not a function", hint="lambda rows: rows.where(…)")
        refuse_wrong_arguments(self.transform)
        if self.expect is not None:
            refuse_wrong_conditions(self.expect)
        check_choice(f"{self.name}: engine", self.engine, ["direct"], hint='engine="direct"')
        check_choice(f"{self.name}: guarantee", self.guarantee, Guarantee, hint='guarantee="at-least-once"')
        object.__setattr__(self, "guarantee", Guarantee(self.guarantee))
        if isinstance(self.sink, TransactionalSink) and self.offsets not in (None, self.sink.offsets):
            raise ConfigError(
                f"{self.name}: {type(self.sink).__name__} keeps the offsets with the rows, in one transaction;"
                " a second store could only disagree with it",
                hint="leave offsets= out",
            )
        self._check_mirror_group()
        delivery.protocol(self.guaranteed, self.sink)
        self.sink.check_topics(self.topics)
        self._check_dead_letters()
        for source in self.sources.values():
            if (topic := self.sink.writes_to_source_topic(source.bootstrap, self.forbidden_topics(source))) is not None:
                raise self.loop_error(topic)

    def forbidden_topics(self, source: Kafka) -> Callable[[str], bool]:
        """A function that returns whether the sink must not write to a topic on the cluster of `source`.

        That is a topic which the pipeline reads, or the dead-letter topic, where a row could pose as a dead letter.
        """
        return partial(
            _is_forbidden, source.subscription.reads, self.dead_letter_target.topic if self.dead_letter_target else None
        )

    def loop_error(self, topic: str) -> ConfigError:
        if self.dead_letter_target and topic == self.dead_letter_target.topic:
            return ConfigError(
                f"{self.name}: rows and dead letters would go to the same topic, {topic}",
                hint=f'dead_letters=hr.DeadLetters(topic="{self.name}-dead")',
            )
        return ConfigError(
            f"{self.name}: rows written to {topic} would be read again: it is a topic of the source",
            hint="another topic for the sink, or a pattern that leaves it out",
        )

    @property
    def sources(self) -> Mapping[str, Kafka]:
        """The sources, by the names of their tables in SQL."""
        return {ROWS: self.source} if isinstance(self.source, Kafka) else self.source

    @property
    def topics(self) -> tuple[str, ...] | None:
        """The names of all topics, as in offsets and rows, if they are known in advance."""
        return known_topics(self.sources)

    @property
    def dead_letter_target(self) -> DeadLetters | None:
        """The destination of records that cannot be stored."""
        return DeadLetters(table=self.dead_letters) if isinstance(self.dead_letters, str) else self.dead_letters

    @property
    def caches_rows(self) -> bool:
        """Whether Spark caches the transformed rows of a batch, because they are read more than once."""
        return self.expect is not None or not self.sink.reads_rows_once

    @property
    def guaranteed(self) -> Guarantee:
        return Guarantee(self.guarantee)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that deliver a batch."""
        return delivery.protocol(self.guaranteed, self.sink)

    @property
    def store(self) -> OffsetStore:
        """The offset store."""
        if self.offsets is not None:
            return self.offsets
        if isinstance(self.sink, TransactionalSink):
            return self.sink.offsets
        return SQLite(state_directory() / "offsets.db")

    @property
    def lag_group(self) -> str:
        """The consumer group under which tools find the offsets; the pipeline's name if there is none."""
        return self.store.consumer_group(self.name) or self.mirror_group or self.name

    @property
    def resources(self) -> list[Resource]:
        """The store, the sink, and the sinks of a fan-out; each once."""
        resources: list[Resource] = [self.store, self.sink, *self.sink.members]
        return list({id(resource): resource for resource in resources}.values())

    def run(
        self,
        *,
        until: Literal["caught-up"] | None = None,
        session: SparkSession | None = None,
        spark: Mapping[str, str] | None = None,
        observer: Observer | None = None,
        metrics: MetricsExporter | None = None,
        fail_fast: bool = False,
        take_over: bool = False,
        standby: bool = False,
    ) -> Summary:
        """Run until SIGTERM or Ctrl-C; with `until="caught-up"`, until all records that exist at the start are done.

        `session` is a Spark session of your own (see `hr.configure`). Without it the run creates one, with the options
        in `spark` over Headrace's defaults. `fail_fast` stops at the first error instead of retrying. `metrics` exports
        metrics of the run: `hr.Metrics(port=9100)` for Prometheus, `hr.OpenTelemetry()`.

        If another run of this pipeline is alive, this one stops with OffsetConflict. With `take_over` it starts anyway:
        the other run stops at its next batch, and nothing is stored twice. `standby` waits until the other has ended.
        """
        from headrace.runtime.heartbeat import rival_policy
        from headrace.runtime.launch import launch

        return launch(
            self,
            until=until,
            session=session,
            options=spark or {},
            observer=observer,
            metrics=metrics,
            fail_fast=fail_fast,
            rival=rival_policy(take_over=take_over, standby=standby),
        )

    def start(
        self,
        *,
        until: Literal["caught-up"] | None = None,
        session: SparkSession | None = None,
        spark: Mapping[str, str] | None = None,
        observer: Observer | None = None,
        metrics: MetricsExporter | None = None,
        fail_fast: bool = False,
        take_over: bool = False,
        standby: bool = False,
    ) -> Run:
        """Start a run in a thread of its own, with the arguments of `run()`, and return its handle.

            with clicks.start() as run:
                ...

        Raises errors that occur before that thread starts: wrong arguments, another run of this pipeline on this
        machine, a store or sink that another run of this process has open, or Spark that does not start. Other errors,
        such as a store that does not answer, are retried as `retry` says, shown by `run.status` and raised by
        `run.wait()`. It handles no signals.
        """
        from headrace.runtime.heartbeat import rival_policy
        from headrace.runtime.launch import start

        return start(
            self,
            until=until,
            session=session,
            options=spark or {},
            observer=observer,
            metrics=metrics,
            fail_fast=fail_fast,
            rival=rival_policy(take_over=take_over, standby=standby),
        )

    def _check_mirror_group(self) -> None:
        if self.mirror_group is None:
            return
        hint = f'mirror_group="{self.name}-lag"'
        if not isinstance(self.mirror_group, str) or not self.mirror_group:
            raise ConfigError(
                f"{self.name}: mirror_group={self.mirror_group!r}: expected the name of a consumer group", hint=hint
            )
        if self.mirror_group == self.store.consumer_group(self.name):
            raise ConfigError(
                f"{self.name}: the offsets themselves are kept in the group {self.mirror_group}; a mirror would commit"
                " over them",
                hint=f"{hint}; or leave it out: tools show the lag of {self.mirror_group} as it is",
            )

    def _check_dead_letters(self) -> None:
        if self.dead_letters is None:
            return
        if not isinstance(self.dead_letters, str):
            hint = 'dead_letters="clicks_dead"'
            check_instance(f"{self.name}: dead_letters", self.dead_letters, DeadLetters, hint=hint)
        target = self.dead_letter_target
        if target and target.table and not isinstance(self.sink, DeadLetterTableSink):
            raise ConfigError(
                f"{self.name}: {type(self.sink).__name__} has no tables of its own for dead letters",
                hint=f'dead_letters=hr.DeadLetters(topic="{self.name}-dead")',
            )
        if (
            target
            and target.table
            and isinstance(self.sink, DeadLetterTableSink)
            and self.sink.is_row_table(target.table)
        ):
            raise ConfigError(
                f"{self.name}: expected a table of their own for dead letters, got {target.table}, where the rows go",
                hint=f'dead_letters="{target.table}_dead"',
            )
        if target and target.topic and len({source.bootstrap for source in self.sources.values()}) > 1:
            raise ConfigError(
                f"{self.name}: dead letters of several clusters have no topic in common",
                hint='a sink with tables: dead_letters="clicks_dead"',
            )
        for source in self.sources.values():
            if target and target.topic and source.reads(target.topic):
                raise ConfigError(
                    f"{self.name}: the dead letters would be read again: {target.topic} is a topic of the source",
                    hint=f'dead_letters=hr.DeadLetters(topic="{self.name}-dead")',
                )
            if source.format.on_error != "fail":
                raise ConfigError(
                    f'{self.name}: bad records can go to the dead letters or be treated by on_error="'
                    f'{source.format.on_error}", not both',
                    hint="leave on_error out",
                )


def _is_forbidden(reads: Callable[[str], bool], dead_letter_topic: str | None, topic: str) -> bool:
    return topic == dead_letter_topic or reads(topic)
