"""Checks a pipeline: reports what it will do, why its guarantee holds, and what prevents a run. Changes nothing.

Checks that need no Spark come first: a missing topic is found within a second.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.core.delivery import Guarantee
from headrace.core.sink import IdempotentSink, TransactionalSink
from headrace.core.transforms import cannot_run
from headrace.engine import replay_check
from headrace.errors import ConfigError, HeadraceError, OffsetConflict, RetriableError
from headrace.kafka import config_checks
from headrace.kafka.cluster import Cluster
from headrace.kafka.source_set import ROWS
from headrace.runtime import file_locations
from headrace.runtime.launch import analyse_transform, refuse_loops, session_for
from headrace.support.optional_imports import require
from headrace.support.paths import obstacle
from headrace.support.tracebacks import short, user_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from headrace.core.format import Format, Part
    from headrace.core.resource import Resource
    from headrace.kafka.source import Kafka
    from headrace.runtime.pipeline import Pipeline


_SLOW_SECONDS = 1.0
"""Seconds after which a slow check is reported as progress."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why a pipeline cannot run, and the cure."""

    message: str
    hint: str | None = None


@dataclass(slots=True)
class Findings:
    errors: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, error: HeadraceError) -> None:
        self.errors.append(Problem(error.message, error.hint))


@dataclass(frozen=True, slots=True)
class Report:
    pipeline: str
    guarantee: str
    reason: str
    steps: tuple[str, ...]
    source: str
    sink: str
    offsets: str
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    errors: tuple[Problem, ...] = ()


def check(
    pipeline: Pipeline, options: Mapping[str, str], progress: Callable[[str], None] = lambda line: None
) -> Report:
    """Check all systems that the pipeline needs. The `errors` of the report say why it cannot run."""
    found = Findings()
    _check_drivers(pipeline, found)
    for source in pipeline.sources.values():
        found.notes += [*_uncovered_records(source), *config_checks.config_warnings(source)]
        with _report_if_slow(progress, f"waiting for Kafka at {source.bootstrap} …"):
            _check_topics(source, found)
    for source in pipeline.sources.values():
        _check_formats(source, found, progress)
    if not found.errors:
        _check_dead_letter_topic(pipeline, found)
    _check_files(pipeline, found)
    if not found.errors:
        with _report_if_slow(progress, f"waiting for {pipeline.store!r} …"):
            _check_store(pipeline, found)
        with _report_if_slow(progress, f"waiting for {pipeline.sink!r} …"):
            _check_sink(pipeline, found)
    if not found.errors:
        _check_loops(pipeline, found)
    found.notes += file_locations.paths_changed(pipeline)
    found.notes += _checksum_warnings()
    rows = None if found.errors else check_transform(pipeline, options, found, progress)
    return Report(
        pipeline=pipeline.name,
        guarantee=pipeline.guaranteed,
        reason=_reason(pipeline, rows),
        steps=tuple(pipeline.steps),
        source="; ".join(
            str(source) if name == ROWS else f"{name}: {source}" for name, source in pipeline.sources.items()
        ),
        sink=_describe(pipeline.sink),
        offsets="in the sink" if isinstance(pipeline.sink, TransactionalSink) else _describe(pipeline.store),
        columns=tuple(f"{f.name} {f.dataType.simpleString()}" for f in rows.schema) if rows is not None else (),
        notes=tuple(found.notes),
        errors=tuple(found.errors),
    )


@contextmanager
def _report_if_slow(progress: Callable[[str], None], line: str) -> Iterator[None]:
    """Report `line` as progress if the block takes long."""
    timer = threading.Timer(_SLOW_SECONDS, progress, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _describe(resource: Resource) -> str:
    """The resource, with its absolute path if a relative one was given."""
    path = resource.local_path
    return repr(resource) if path is None or str(path) in repr(resource) else f"{resource!r} at {path}"


def _check_drivers(pipeline: Pipeline, found: Findings) -> None:
    for driver in dict.fromkeys(resource.driver for resource in pipeline.resources if resource.driver is not None):
        try:
            require(*driver)
        except ConfigError as error:
            found.add(error)
        except ImportError as error:
            found.errors.append(
                Problem(f"{driver[0]} cannot be imported: {error}", f"pip install 'headrace[{driver[1]}]'")
            )


def _check_topics(source: Kafka, found: Findings) -> None:
    try:
        cluster = Cluster.of(source)
        if not cluster.led_logs(source.subscription):
            found.notes.append(f"no topic exists yet: {source.subscription}; a run looks for new topics")
        found.notes += config_checks.topic_limit_warnings(cluster, source)
    except HeadraceError as error:
        found.add(error)


def _check_formats(source: Kafka, found: Findings, progress: Callable[[str], None]) -> None:
    formats: dict[Part, Format | None] = {"value": source.format, "key": source.key_format}
    for part, fmt in formats.items():
        if fmt is None:
            continue
        with _report_if_slow(progress, f"waiting for {fmt!r} …"):
            try:
                fmt.check(part, source.subscription.names or ())
            except HeadraceError as error:
                found.add(error)


def _check_dead_letter_topic(pipeline: Pipeline, found: Findings) -> None:
    """Check that the topic for dead letters exists: a run would only fail at the first bad record."""
    if pipeline.dead_letter_target is None or (topic := pipeline.dead_letter_target.topic) is None:
        return
    try:
        cluster = Cluster.of(next(iter(pipeline.sources.values())))
        if (note := cluster.check_topic_exists(topic)) is not None:
            found.notes.append(f"dead letters: {note}")
    except HeadraceError as error:
        found.errors.append(Problem(f"dead letters: {error.message}", error.hint))


def _uncovered_records(source: Kafka) -> list[str]:
    """Notes on records that the guarantee does not cover: those that are skipped, or read again by each run."""
    notes = []
    if not source.resume:
        notes.append(f"resume=False: every run starts at {source.start}, whatever earlier runs have read")
    if source.max_lag is not None:
        notes.append(
            f"max_lag={source.max_lag}: records that lag more are never read; headrace offsets history lists them"
        )
    return notes


def _check_files(pipeline: Pipeline, found: Findings) -> None:
    by_path = {resource.local_path: resource for resource in pipeline.resources}  # a sink and its store share a file
    for path, resource in by_path.items():
        if path is not None and (reason := obstacle(path)) is not None:
            found.errors.append(Problem(f"{resource!r} at {path}: {reason}", "choose a path that this user may write"))


def _checksum_warnings() -> list[str]:
    from headrace.jars import bundles, cache

    return [warning for bundle in bundles.bundles() if (warning := cache.unpinned_warning(bundle)) is not None]


def _check_loops(pipeline: Pipeline, found: Findings) -> None:
    try:
        refuse_loops(pipeline)
    except HeadraceError as error:
        found.add(error)


def _check_store(pipeline: Pipeline, found: Findings) -> None:
    try:
        with pipeline.store as store:
            store.open_for_reading(pipeline.name)
    except OffsetConflict as error:  # a run has it open, so it is usable
        found.notes.append(f"the store could not be checked: {error.message}")
        return
    except HeadraceError as error:
        found.add(error)
        return
    try:
        found.notes += pipeline.store.durability_warnings(pipeline.name)
    except RetriableError as error:  # no answer: a run would wait
        found.add(error)
    except HeadraceError as error:  # a run does not make this check
        found.notes.append(f"the durability of the store could not be checked: {error.message}")


def _check_sink(pipeline: Pipeline, found: Findings) -> None:
    if found.errors:
        return  # an error of the store, which may be on the same server
    try:
        pipeline.sink.check_reachable()
    except OffsetConflict as error:
        found.notes.append(f"the sink could not be checked: {error.message}")
    except HeadraceError as error:
        found.add(error)


def check_transform(
    pipeline: Pipeline, options: Mapping[str, str], found: Findings, progress: Callable[[str], None]
) -> DataFrame | None:
    """The transform's result on no rows; None if it has none."""
    from headrace.engine.lineage import trace
    from headrace.engine.source_readers import SourceReaders
    from headrace.spark import session

    try:
        if not session.running():
            progress("starting Spark to check the schema, the transform and the table …")
        inputs = SourceReaders.of(session_for(pipeline, None, options, progress), pipeline)
        rows = analyse_transform(pipeline, inputs)
    except HeadraceError as error:
        found.add(error)
        return None
    except Exception as error:  # raised by the user's function
        _add_transform_error(error, found)
        return None
    found.notes += replay_check.replay_warnings(trace(rows))
    try:
        pipeline.sink.check_target(rows.schema)
    except OffsetConflict as error:  # a run has locked the file, and makes this check itself
        found.notes.append(f"the sink could not be checked: {error.message}")
    except HeadraceError as error:
        found.add(error)
    return rows


def _add_transform_error(error: Exception, found: Findings) -> None:
    at = user_line(error)
    message = f"the transform raised {type(error).__name__}: {short(error)}" + (f" at {at}" if at else "")
    if cannot_run(error):
        found.errors.append(Problem(message, "correct the function; nothing was read"))
    else:
        found.notes.append(f"{message}, on no rows: its columns are unknown until the first batch")


def _reason(pipeline: Pipeline, rows: DataFrame | None) -> str:
    write_path = None
    if rows is not None:
        cached = pipeline.dead_letter_target is not None or pipeline.caches_rows
        write_path = pipeline.sink.describe_write(rows, cached=cached)
    return _guarantee_reason(pipeline) + (f": {write_path}" if write_path else "")


def _guarantee_reason(pipeline: Pipeline) -> str:
    if isinstance(pipeline.sink, TransactionalSink):
        if pipeline.guaranteed is Guarantee.EXACTLY_ONCE:
            return "rows and offsets move in one transaction of the sink"
        return "stronger than requested: rows and offsets move in one transaction of the sink, which is exactly-once"
    match pipeline.guaranteed:
        case Guarantee.AT_MOST_ONCE:
            return "offsets move before the rows are written, and no write is ever repeated"
        case Guarantee.AT_LEAST_ONCE:
            if isinstance(pipeline.sink, IdempotentSink):
                return "stronger than requested: a repeated batch leaves the sink unchanged, which is exactly-once"
            return "the ranges are journalled before the write, and offsets move after it; a crash repeats the batch"
        case Guarantee.EXACTLY_ONCE:
            return "the exact ranges are journalled before the write, and a repeated batch leaves the sink unchanged"
