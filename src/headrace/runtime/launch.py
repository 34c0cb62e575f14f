"""Starts runs: assembles Spark, Kafka and the observers, and handles signals on the main thread."""

from __future__ import annotations

import os
import queue
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headrace import events
from headrace.core.delivery import Guarantee
from headrace.engine import replay_check
from headrace.errors import HeadraceError
from headrace.kafka.source_set import source_for_topic
from headrace.runtime.delay_probe import DelayProbe
from headrace.runtime.event_messages import log
from headrace.runtime.heartbeat import refuse_second
from headrace.runtime.in_use import reserve
from headrace.runtime.metrics_export import MetricsExporter
from headrace.runtime.retry import retry_until_stopped
from headrace.runtime.run_handle import DRAIN_SECONDS, GRACE_SECONDS, Run, drain_timeout_error
from headrace.runtime.runner import Runner, Stop, Summary
from headrace.runtime.signals import WAKE_SECONDS, on_stop_signal, preserve_ctrl_c
from headrace.runtime.source_states import SourceState
from headrace.support.validation import check_choice, check_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from headrace.engine.source_readers import SourceReaders
    from headrace.kafka.source import Kafka
    from headrace.runtime.heartbeat import Rival
    from headrace.runtime.pipeline import Pipeline

_Result = TypeVar("_Result")

FORCED = 130
"""Exit code after a second Ctrl-C, by the convention of shells."""


def start(
    pipeline: Pipeline,
    *,
    until: Literal["caught-up"] | None = None,
    session: SparkSession | None = None,
    options: Mapping[str, str],
    observer: events.Observer | None = None,
    metrics: MetricsExporter | None = None,
    fail_fast: bool = False,
    progress: Callable[[str], None] = lambda line: None,
    rival: Rival = "stop",
    while_spark_starts: AbstractContextManager[object] | None = None,
    ended: Callable[[], None] = lambda: None,
) -> Run:
    """Start a run of `pipeline`.

    Raises errors that occur before its thread starts: wrong arguments, another run on this machine, a store or sink
    that another run has open, or Spark that does not start. `Run.wait` raises all other errors, which may be retried.
    """
    from headrace.spark.own_jobs import OwnJobs

    if until is not None:
        check_choice("until", until, ["caught-up"])
    if metrics is not None:
        check_instance("metrics", metrics, MetricsExporter, hint="metrics=hr.Metrics(port=9100)")
    with ExitStack() as reserved:
        reserved.enter_context(reserve(pipeline.name, pipeline.resources))
        combined = observer or log
        if metrics is not None:
            combined = events.combine(
                combined, reserved.enter_context(metrics.observe(pipeline.name, pipeline.sources, pipeline.lag_group))
            )
        if rival == "stop":
            refuse_second(pipeline.name, pipeline.store)  # before the slow start of Spark
        with while_spark_starts or nullcontext(), preserve_ctrl_c():
            spark = session_for(pipeline, session, options, progress)
        jobs = OwnJobs(spark)
        run_resources = reserved.pop_all()

    def work(stop: Stop, observe: events.Observer) -> Summary:
        with run_resources:
            jobs.adopt_thread()
            return carry_out(pipeline, spark, stop, observe, until=until, fail_fast=fail_fast, rival=rival)

    return Run(pipeline.name, work, cancel=jobs.cancel, observer=combined, ended=ended)


def launch(pipeline: Pipeline, *, drain: float = DRAIN_SECONDS, **arguments: Any) -> Summary:
    """Run `pipeline` until it is done or, on the main thread, until a signal stops it. `arguments`: those of `start`.

    The first SIGTERM or Ctrl-C finishes the batch in flight, within `drain` seconds; the second exits at once. While
    Spark starts, the first one exits at once, because no batch is in flight.
    """
    ends: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    starting = False

    def on_signal(name: str) -> None:
        if starting:
            raise KeyboardInterrupt if name == "SIGINT" else _StoppedWhileStarting
        ends.put(name)

    @contextmanager
    def exit_at_first_signal() -> Iterator[None]:
        nonlocal starting
        starting = True
        try:
            yield
        finally:
            starting = False

    with on_stop_signal(on_signal, second=lambda *_: os._exit(FORCED)):
        try:
            run = start(pipeline, **arguments, while_spark_starts=exit_at_first_signal(), ended=partial(ends.put, None))
        except _StoppedWhileStarting:
            return Summary(0, 0)
        while True:
            with suppress(queue.Empty):
                name = ends.get(timeout=WAKE_SECONDS)
                break
        if name is not None:  # None: the run has ended by itself
            run.stop(drain=drain, reason=name)
            if run.wait(drain + GRACE_SECONDS) is None:
                # It does not run in Spark, so it cannot be cancelled; the next start repeats the unfinished batch.
                error = drain_timeout_error(drain)
                os.write(2, f"error: {error.message}\nhint: {error.hint}\n".encode())
                os._exit(HeadraceError.exit_code)
        return run.wait()


def carry_out(
    pipeline: Pipeline,
    spark: SparkSession,
    stop: Stop,
    observe: events.Observer,
    *,
    until: Literal["caught-up"] | None,
    fail_fast: bool,
    rival: Rival,
) -> Summary:
    """Execute a run, from its first requests for schemas and topics to its end; leaves nothing open."""
    from headrace.engine.engine import DirectEngine
    from headrace.engine.source_readers import SourceReaders

    def retry(call: Callable[[], _Result]) -> _Result | None:
        """Repeat a call while servers do not answer; None once a stop is requested."""
        if fail_fast:
            return call()
        return retry_until_stopped(call, stop.requested.wait, observer, policy=pipeline.retry.policy(until))

    with ExitStack() as resources:
        observer = _with_location_notes(pipeline, _with_mirror(pipeline, observe, resources))
        inputs = retry(partial(SourceReaders.of, spark, pipeline))  # sends requests to schema registries
        if inputs is None or retry(partial(refuse_loops, pipeline)) is None:
            return Summary(0, 0)
        resources.callback(inputs.close)
        result = check_transform(pipeline, inputs)
        sources = open_sources(pipeline.sources, f"headrace-{pipeline.name}")
        for state in sources:
            resources.callback(state.cluster.close)
        delays = DelayProbe(sources)
        resources.callback(delays.close)
        schema = result.schema if result is not None else None
        runner = Runner(
            pipeline,
            sources,
            DirectEngine(spark, pipeline, inputs, schema, patient=not fail_fast),
            observer=observer,
            fail_fast=fail_fast,
            rival=rival,
            stop=stop,
            delays=delays,
        )
        return runner.run(until)


def refuse_loops(pipeline: Pipeline) -> bool:
    """ConfigError if the sink would write to a topic that the pipeline reads, or to its dead-letter topic, also through
    another address of the same cluster."""
    from headrace.kafka.cluster import Cluster

    def cluster(source: Kafka) -> str:
        return Cluster.of(source).id()

    for source in pipeline.sources.values():
        if (
            topic := pipeline.sink.writes_to_source_cluster(partial(cluster, source), pipeline.forbidden_topics(source))
        ) is not None:
            raise pipeline.loop_error(topic)
    return True


def open_sources(sources: Mapping[str, Kafka], client: str = "headrace") -> list[SourceState]:
    """Each source with a connection to its cluster; `client` is its client id."""
    from headrace.kafka import config_checks
    from headrace.kafka.cluster import Cluster

    def state_of(source: Kafka) -> SourceState:
        cluster = Cluster.of(source, client)
        return SourceState(
            source,
            cluster,
            lambda: [*config_checks.config_warnings(source), *config_checks.topic_limit_warnings(cluster, source)],
        )

    return [state_of(source) for source in sources.values()]


def check_transform(pipeline: Pipeline, inputs: SourceReaders) -> DataFrame | None:
    """The transform's result on no rows, before any record is read; ConfigError if it cannot work.

    None if the function raised an exception of its own: that may depend on the rows, so the first batch decides.
    """
    try:
        return analyse_transform(pipeline, inputs)
    except HeadraceError:
        raise
    except Exception:
        return None


def analyse_transform(pipeline: Pipeline, inputs: SourceReaders) -> DataFrame:
    """The same, but it also raises the exceptions of the function."""
    from headrace.engine import expectation_check
    from headrace.engine.lineage import trace
    from headrace.engine.transform_check import dry_run

    result = dry_run(inputs, pipeline.transform)
    expectation_check.analyse(result, pipeline.expect or {})
    replay_check.refuse_volatile_keys(pipeline, trace(result))
    return result


def _with_mirror(pipeline: Pipeline, observer: events.Observer, resources: ExitStack) -> events.Observer:
    """An observer that also commits to the group that mirrors the offsets, if there is one, until `resources` close."""
    from headrace.kafka.group_mirror import GroupMirror

    group, sources = pipeline.mirror_group, pipeline.sources
    if group is None:
        return observer

    def mirror(name: str) -> GroupMirror:
        return GroupMirror(sources[name], group, observer, reads=lambda topic: source_for_topic(sources, topic) == name)

    return events.combine(observer, *(resources.enter_context(mirror(name)) for name in sources))


def _with_location_notes(pipeline: Pipeline, observer: events.Observer) -> events.Observer:
    """An observer that also reports, once, files that the last run had at other paths, and records the new paths."""
    from headrace.runtime import file_locations

    notes = file_locations.paths_changed(pipeline)  # before opening a store or sink creates a file

    def observe(event: events.Event) -> None:
        observer(event)
        if isinstance(event, events.RunStarted):
            for note in notes:
                observer(events.Noted(note))
            file_locations.remember(pipeline)

    return observe


def session_for(
    pipeline: Pipeline,
    given: SparkSession | None,
    options: Mapping[str, str],
    progress: Callable[[str], None],
) -> SparkSession:
    """The given session, or a new one with `options`; ConfigError if it cannot keep the guarantee."""
    from headrace.spark import session, task_retries

    at_most_once = pipeline.guaranteed is Guarantee.AT_MOST_ONCE
    spark = given or session.create(
        {**pipeline.sink.spark_options, **options, **(task_retries.OFF if at_most_once else {})}, progress
    )
    if at_most_once:
        task_retries.refuse_retries(spark)
    return spark


class _StoppedWhileStarting(BaseException):
    """SIGTERM during the start of Spark: no batch is running."""
