"""A run as a process: Spark and Kafka put together, signals heard, a deadline for the batch in hand."""

from __future__ import annotations

import os
import queue
import signal
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from headrace import replays
from headrace.delivery import Guarantee
from headrace.errors import ConfigError, HeadraceError
from headrace.expectations import Gate
from headrace.heartbeat import refuse_second
from headrace.kafka.source import owner
from headrace.pace import patiently
from headrace.reading import Feed
from headrace.runner import Runner, Summary
from headrace.sentences import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from pyspark.sql import DataFrame, SparkSession

    from headrace import events
    from headrace.heartbeat import Rival
    from headrace.kafka.source import Kafka
    from headrace.pipeline import Pipeline
    from headrace.spark.inputs import Inputs

DRAIN_SECONDS = 60.0
GRACE_SECONDS = 5.0
"""What a batch gets after its Spark jobs were cancelled at the deadline."""
MORE_TIME = "--drain SECONDS gives it more time"
FORCED = 130
"""Exit code after a second Ctrl-C, as shells expect it."""


def launch(
    pipeline: Pipeline,
    *,
    until: Literal["caught-up"] | None = None,
    session: SparkSession | None = None,
    options: Mapping[str, str],
    observer: events.Observer | None = None,
    fail_fast: bool = False,
    drain: float = DRAIN_SECONDS,
    progress: Callable[[str], None] = lambda line: None,
    rival: Rival = "stop",
) -> Summary:
    """Run `pipeline` in this process until it is stopped or done."""
    from headrace.spark.engine import DirectEngine
    from headrace.spark.inputs import Inputs

    if until not in (None, "caught-up"):
        raise ConfigError(f"until={until!r} is unknown", hint='until="caught-up"')
    if rival == "stop" and session is None:
        refuse_second(pipeline.name, pipeline.store)  # before Spark starts, which takes long
    with _Signals(drain) as signals, ExitStack() as ending:
        try:
            with signals.leaving_at_once():
                spark = session_for(pipeline, session, options, progress)
        except _StoppedEarly:
            return Summary(0, 0)
        signals.listen()  # again: Spark's own handler would cancel the running jobs on the first Ctrl-C
        watching = _locating(pipeline, _mirrored(pipeline, observer or log, ending))
        # Schema registries are asked.
        make = partial(Inputs.of, spark, pipeline)
        again = partial(patiently, retry=pipeline.retry, until=until)
        inputs = make() if fail_fast else again(make, signals.heard, watching)
        if inputs is None:
            return Summary(0, 0)
        look = partial(refuse_loops, pipeline)
        if (look() if fail_fast else again(look, signals.heard, watching)) is None:
            return Summary(0, 0)
        result = check_transform(pipeline, inputs)
        runner = Runner(
            pipeline,
            connected(pipeline.sources, f"headrace-{pipeline.name}"),
            DirectEngine(spark, pipeline, inputs, result.schema if result is not None else None, patient=not fail_fast),
            observer=watching,
            fail_fast=fail_fast,
            rival=rival,
        )
        signals.direct_to(runner.stop, spark.sparkContext.cancelAllJobs)
        summary = runner.run(until)
    if signals.overdue:
        raise HeadraceError(_overdue(drain), hint=MORE_TIME)
    return summary


def refuse_loops(pipeline: Pipeline) -> bool:
    """ConfigError if the sink would write to a topic that the pipeline reads, by whatever address it does so."""
    from headrace.kafka.cluster import Cluster

    def cluster(source: Kafka) -> str:
        return Cluster.of(source).id()

    for source in pipeline.sources.values():
        if (topic := pipeline.sink.loops_on(partial(cluster, source), source.subscription.reads)) is not None:
            raise pipeline.loop(topic)
    return True


def connected(sources: Mapping[str, Kafka], client: str = "headrace") -> list[Feed]:
    """Each source with a connection to its cluster, which knows it as `client`."""
    from headrace.kafka import settings
    from headrace.kafka.cluster import Cluster

    def feed(source: Kafka) -> Feed:
        cluster = Cluster.of(source, client)
        return Feed(source, cluster, lambda: [*settings.notes(source), *settings.asked(cluster, source)])

    return [feed(source) for source in sources.values()]


def check_transform(pipeline: Pipeline, inputs: Inputs) -> DataFrame | None:
    """The transform's result on no rows, before anything is read; ConfigError for what cannot work.

    None if the function raised something of its own: it may depend on what is there later, so a batch will tell.
    """
    try:
        return analyse_transform(pipeline, inputs)
    except HeadraceError:
        raise
    except Exception:
        return None


def analyse_transform(pipeline: Pipeline, inputs: Inputs) -> DataFrame:
    """The same, with whatever the function raised."""
    from headrace.spark import gate
    from headrace.spark.lineage import trace
    from headrace.spark.plan import preview

    result = preview(inputs, pipeline.transform)
    if isinstance(pipeline.transform, Gate):
        gate.analyse(result, pipeline.transform.conditions)
    replays.refuse_volatile_keys(pipeline, trace(result))
    return result


def _mirrored(pipeline: Pipeline, observer: events.Observer, ending: ExitStack) -> events.Observer:
    """Also commits to the group that mirrors the offsets, if there is one, until `ending` ends."""
    from headrace.kafka.mirror import Mirror

    name = pipeline.store.mirror
    if not name:
        return observer
    group = pipeline.name if name is True else str(name)
    sources = pipeline.sources

    def mirror(own: str) -> Mirror:
        return Mirror(sources[own], group, observer, reads=lambda topic: owner(sources, topic) == own)

    mirrors = [ending.enter_context(mirror(own)) for own in sources]

    def all_of_them(event: events.Event) -> None:
        observer(event)
        for mirror in mirrors:
            mirror(event)

    return all_of_them


def _locating(pipeline: Pipeline, observer: events.Observer) -> events.Observer:
    """Also says, once, if files are not where the last run had them, and remembers where they are."""
    from headrace import events, locations

    notes = locations.moved(pipeline)  # before anything is opened, and so created

    def observe(event: events.Event) -> None:
        observer(event)
        if isinstance(event, events.RunStarted):
            for note in notes:
                observer(events.Noted(note))
            locations.remember(pipeline)

    return observe


def session_for(
    pipeline: Pipeline,
    given: SparkSession | None,
    options: Mapping[str, str],
    progress: Callable[[str], None],
) -> SparkSession:
    """The session that was given, or one with `options`; ConfigError if the guarantee cannot be kept with it."""
    from headrace.spark import session, task_retries

    once = pipeline.guaranteed is Guarantee.AT_MOST_ONCE
    spark = given or session.create(
        {**pipeline.sink.spark_options, **options, **(task_retries.OFF if once else {})}, progress
    )
    if once:
        task_retries.refuse(spark)
    return spark


def _overdue(drain: float) -> str:
    return f"the batch in hand was not finished {drain:.0f} s after the stop; it is repeated at the next start"


class _StoppedEarly(BaseException):
    """SIGTERM while Spark was starting: no batch is running."""


class _Signals:
    """First SIGTERM or Ctrl-C: finish the batch in hand, within the deadline. Second: leave at once."""

    def __init__(self, drain: float) -> None:
        self._drain = drain
        self._heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._again = False
        self._at_once = False
        self._told = threading.Event()
        self._finished = threading.Event()
        self._before: dict[int, Any] = {}
        self.overdue = False

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._heard.put(None)  # whoever waits for a signal goes, and lets go of the run
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread hears signals; the host process stops us its own way
        for number in (signal.SIGTERM, signal.SIGINT):
            replaced = signal.signal(number, self._hear)
            self._before.setdefault(number, replaced)

    @contextmanager
    def leaving_at_once(self) -> Iterator[None]:
        """Within, the first signal interrupts whatever is being done, for nothing is lost by that."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def heard(self, seconds: float) -> bool:
        """Whether a signal has come, or comes within so long."""
        return self._told.wait(seconds)

    def direct_to(self, stop: Callable[[str], None], cut_off: Callable[[], None]) -> None:
        """From now on, also for a signal heard before, stop gently and cut off at the deadline."""

        def wind_down() -> None:
            name = self._heard.get()
            if name is None:
                return
            stop(name)
            if not self._finished.wait(self._drain):
                self.overdue = True
                cut_off()
                if not self._finished.wait(GRACE_SECONDS):
                    # Not in Spark, so nothing can be cancelled; what is half done is repeated at the next start.
                    os.write(2, f"error: {_overdue(self._drain)}\nhint: {MORE_TIME}\n".encode())
                    os._exit(HeadraceError.exit_code)

        # In a thread of its own: the handler runs inside whatever lock the main thread holds at that moment.
        threading.Thread(target=wind_down, name="headrace-stop", daemon=True).start()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._again:
            os._exit(FORCED)
        self._again = True
        if self._at_once:
            raise KeyboardInterrupt if number == signal.SIGINT else _StoppedEarly
        self._heard.put(signal.Signals(number).name)
        self._told.set()
