"""Offsets shown to other tools: a Kafka group that follows the store, and never holds the pipeline up."""

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


class Mirror:
    """An observer that commits to `group` what the store has committed, in a thread of its own.

    The thread lives within the context, however that ends; the end waits until the newest offsets are committed. The
    consumer is made for the first commit and closed with the thread: a run that does not start leaves no client.

    Only the newest offsets matter, so a slow broker makes the group older, not the pipeline slower. What cannot be
    committed is told to `tell` and tried again with the next batch. `reads` says which topics, as they are known, are
    the source's own.
    """

    def __init__(self, source: Kafka, group: str, tell: Observer, reads: Callable[[str], bool]) -> None:
        self._source = source
        self._reads = reads
        self._client = Client(source.bootstrap, source.options)
        self._group = group
        self._tell = tell
        self._offsets: dict[TopicPartition, int] = {}
        self._changed = threading.Condition()
        self._news = False
        self._ended = False
        self._consumer: Any = None
        self._thread = threading.Thread(target=self._follow, name="headrace-mirror", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
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
            self._news = True
            self._changed.notify()

    def _follow(self) -> None:
        from confluent_kafka import KafkaException

        shown: dict[TopicPartition, int] = {}
        ended = False
        try:
            while not ended:
                with self._changed:
                    self._changed.wait_for(lambda: self._news or self._ended)
                    wanted, ended, self._news = dict(self._offsets), self._ended, False
                try:
                    self._commit({at: offset for at, offset in wanted.items() if shown.get(at) != offset})
                    shown = wanted
                except (ConfigError, KafkaException) as error:
                    self._tell(events.MirrorFailed(error))
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
        asked = [Position(source.cluster_topic_name(at.topic), at.partition, offset) for at, offset in own.items()]
        for answer in self._consumer.commit(offsets=asked, asynchronous=False):
            if answer.error:
                raise KafkaException(answer.error)
