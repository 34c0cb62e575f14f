"""Mirrors the stored offsets to a consumer group for other tools, without delaying the pipeline."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from headrace import events
from headrace.errors import ConfigError
from headrace.kafka.client import TIMEOUT, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.events import Event, Observer
    from headrace.kafka.source import Kafka
    from headrace.types import TopicPartition


class GroupMirror:
    """An observer that commits the stored offsets to `group` in a separate thread.

    The thread ends with the context, after it has committed the newest offsets. It builds the consumer for the first
    commit and closes it: a run that does not start leaves no client open.

    Only the newest offsets matter, so with a slow broker the group falls behind, not the pipeline. A failed commit is
    reported to `observer` and repeated with the next batch. `reads` returns whether the source reads a topic, given by
    its name in offsets.
    """

    def __init__(self, source: Kafka, group: str, observer: Observer, reads: Callable[[str], bool]) -> None:
        self._source = source
        self._reads = reads
        self._client = Client(source.bootstrap, source.options)
        self._group = group
        self._observer = observer
        self._offsets: dict[TopicPartition, int] = {}
        self._changed = threading.Condition()
        self._pending = False
        self._stopping = False
        self._consumer: Any = None
        self._thread = threading.Thread(target=self._run, name="headrace-mirror", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(TIMEOUT)

    def __call__(self, event: Event) -> None:
        with self._changed:
            match event:
                case events.RunStarted(positions=positions) | events.PartitionsFound(positions=positions):
                    self._offsets.update(positions)
                case events.BatchDone(batch=batch) | events.BatchSkipped(batch=batch):
                    self._offsets.update({r.at: r.until for r in batch.ranges})
                case events.GapFound(lost=lost, resumed_at=offset):
                    self._offsets[lost.at] = offset
                case _:
                    return
            self._pending = True
            self._changed.notify()

    def _run(self) -> None:
        from confluent_kafka import KafkaException

        committed: dict[TopicPartition, int] = {}
        stopping = False
        try:
            while not stopping:
                with self._changed:
                    self._changed.wait_for(lambda: self._pending or self._stopping)
                    wanted, stopping, self._pending = dict(self._offsets), self._stopping, False
                try:
                    self._commit({at: offset for at, offset in wanted.items() if committed.get(at) != offset})
                    committed = wanted
                except (ConfigError, KafkaException) as error:
                    self._observer(events.MirrorFailed(error))
        finally:
            if self._consumer is not None:
                self._consumer.close()

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as Position

        source = self._source
        own = {at: offset for at, offset in offsets.items() if self._reads(at.topic)}
        if not own:
            return
        if self._consumer is None:
            self._consumer = self._client.consumer(self._group)
        positions = [Position(source.cluster_topic_name(at.topic), at.partition, offset) for at, offset in own.items()]
        for answer in self._consumer.commit(offsets=positions, asynchronous=False):
            if answer.error:
                raise KafkaException(answer.error)
