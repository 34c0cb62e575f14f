"""A pipeline with the real loop, and a cluster and an engine in memory: no Kafka, no Spark, rows are plain lists."""

from dataclasses import dataclass, field

import headrace as hr
from headrace import events, sinks, stores
from headrace.connectors.shared.batch_ledger import LastBatch
from headrace.core.delivery import WriteResult
from headrace.core.planner import TopicLog
from headrace.kafka.subscription import Topics
from headrace.runtime.positions import SourceState
from headrace.runtime.runner import Runner
from headrace.types import Batch, Progress, Range, TopicPartition

A, B, C = (TopicPartition("clicks", number) for number in range(3))
QUICK = hr.Retry(first=0.001, longest=0.004)


@dataclass
class Cluster:
    """A cluster in memory. `before` is called ahead of every question, with how many were asked before it."""

    ends_: dict
    beginnings: dict = field(default_factory=dict)
    topic_id: str = "id-1"
    asked: int = 0
    before: object = None
    at_times: dict = field(default_factory=dict)

    def _ask(self):
        if self.before is not None:
            self.before(self.asked)
        self.asked += 1

    def logs(self, subscription):
        self._ask()
        counts = {}
        for at in self.ends_:
            counts[at.topic] = max(counts.get(at.topic, 0), at.partition + 1)
        if subscription.names is not None:
            counts = {topic: counts.get(topic, 0) for topic in subscription.names}
        wanted = set(subscription.wanted(counts)) & set(self.ends_)
        topics = subscription.names or sorted({at.topic for at in wanted})
        return {
            topic: TopicLog(
                self.topic_id,
                {at: self.beginnings.get(at, 0) for at in sorted(wanted) if at.topic == topic},
                {at: self.ends_[at] for at in sorted(wanted) if at.topic == topic},
                tuple(sorted(at for at in self.ends_ if at.topic == topic and at not in wanted)),
            )
            for topic in topics
        }

    def there(self, topics):
        return {topic: log for topic, log in self.logs(Topics(list(topics))).items() if log.ends}

    def ids(self, topics):
        return {topic: log.topic_id for topic, log in self.there(topics).items()}

    def at_time(self, partitions, time):
        self._ask()
        return {at: self.at_times[at] for at in partitions if at in self.at_times}

    def ends(self, partitions):
        self._ask()
        return {at: self.ends_[at] for at in partitions}


class Engine:
    """Rows are the (partition, offset) pairs of a batch."""

    def __init__(self, sink, dropped=0):
        self._sink = sink
        self._dropped = dropped
        self.bytes_each = self.records = None

    def prepare(self):
        """No schema is known."""

    def write(self, batch):
        self._sink.write(batch, [(r.at, offset) for r in batch.ranges for offset in range(r.start, r.until)])
        return WriteResult(dropped=self._dropped, bytes_each=self.bytes_each, records=self.records)

    def translated(self, error):
        return error


@dataclass
class Plain(sinks.Sink):
    """Keeps what it is given, after whatever `before` does."""

    rows: list = field(default_factory=list)
    batches: list = field(default_factory=list)
    before: object = None
    opened: int = 0
    closed: int = 0

    def open(self, pipeline):
        self.opened += 1
        return self

    def close(self):
        self.closed += 1

    def write(self, batch, rows):
        if self.before is not None:
            self.before(batch)
        self.batches.append(batch)
        self.rows += rows


class Idempotent(Plain, sinks.IdempotentSink):
    pass


@dataclass
class Numbered(Idempotent):
    """Recognises batches by their number, as Delta, Iceberg and Jdbc do."""

    newest: LastBatch = field(default_factory=LastBatch)

    def last_batch(self):
        return self.newest.id

    def write(self, batch, rows):
        if not self.newest.holds(batch, "the sink"):
            super().write(batch, rows)
            self.newest = LastBatch(batch.id, batch.fingerprint)


class Killed(BaseException):
    """Not an error that a run repeats."""


def failing(times, error):
    """Raise `error` the first `times` times."""
    left = [times]

    def check(*_):
        if left[0] > 0:
            left[0] -= 1
            raise error

    return check


class World:
    """A pipeline with everything around it, run as often as a test likes."""

    def __init__(
        self,
        ends,
        *,
        guarantee="at-least-once",
        sink=None,
        progress=None,
        limits=None,
        retry=QUICK,
        **source,
    ):
        self.cluster = Cluster(dict(ends))
        self.sink = sink or Plain()
        self.engine = Engine(self.sink)
        self.shared = {}
        if progress is not None:
            self.restore(progress)
        self.seen = []
        self.react = lambda event: None
        self.pipeline = hr.Pipeline(
            name="clicks",
            source=hr.Kafka("nowhere:1", **({"topics": ["clicks"]} | {"refresh": 1000.0} | source)),
            sink=self.sink,
            guarantee=guarantee,
            offsets=stores.Memory(self.shared),
            limits=limits or hr.Limits(),
            retry=retry,
        )

    @property
    def store(self):
        return stores.Memory(self.shared).open("clicks")

    @property
    def progress(self):
        return self.store.load()

    def restore(self, progress):
        """Put the store where an earlier run left it."""
        positions = tuple(Range(at, offset, offset) for at, offset in progress.offsets.items())
        self.store.commit(Batch(progress.last_batch, positions, progress.topic_ids))
        if progress.pending is not None:
            self.store.begin(progress.pending)
        assert self.progress == progress

    def observe(self, event):
        self.seen.append(event)
        self.react(event)

    def runner(self, **how):
        return Runner(
            self.pipeline,
            [SourceState(self.pipeline.source, self.cluster)],
            self.engine,
            observer=self.observe,
            **{"idle": 0.001, **how},
        )

    def run(self, until="caught-up", **how):
        return self.runner(**how).run(until)

    def all(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]


def until_idle(world, runner):
    """Stop the run the first time it has nothing left to do."""
    world.react = lambda event: runner.stop("test") if isinstance(event, events.CaughtUp) else None


def records(**ends):
    return [(at, offset) for at, end in ((A, ends.get("a", 0)), (B, ends.get("b", 0))) for offset in range(end)]


def pending(*ranges):
    return Batch(5, tuple(Range(*r) for r in ranges), {"clicks": "id-1"})


def begun(batch, **offsets):
    return Progress({A: offsets.get("a", 0), B: offsets.get("b", 0)}, batch, {"clicks": "id-1"}, last_batch=4)


class Keyed(Idempotent):
    accepts_partial_batches = True
