"""Compares the topic ids that a batch was planned with to the cluster's, on the driver and in tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import TopicRecreated
from headrace.kafka.cluster import Cluster
from headrace.spark import tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class PlannedTopics:
    """Topics of one cluster, by the names in offsets, with their ids when the batch was planned."""

    bootstrap: str
    options: Mapping[str, str] = field(repr=False)
    prefix: str
    ids: Mapping[str, str]

    def verify(self, cluster: Cluster) -> None:
        """Raise TopicRecreated if a topic now has another id. A deleted topic has no other records."""
        found = cluster.ids(self.ids)
        for topic, planned in sorted(self.ids.items()):
            if (current := found.get(topic, planned)) != planned:
                raise TopicRecreated(
                    f"{topic} was deleted and created again while a batch was being read:"
                    f" expected topic id {planned}, got {current}; nothing of the batch was stored",
                )

    def cluster(self) -> Cluster:
        """The connection of this Python worker."""
        key = ("planned topics", self.bootstrap, self.prefix, tuple(sorted(self.options.items())))
        cluster: Cluster = tasks.worker_cached(
            key, lambda: Cluster(self.bootstrap, self.options, self.prefix), lambda _: None
        )
        return cluster


class TopicCheck:
    """Compares the topics of all sources of a batch. Pickled without the driver's connections."""

    def __init__(self, planned: Sequence[PlannedTopics], clusters: Sequence[Cluster] | None = None) -> None:
        self._planned = tuple(planned)
        self._clusters = clusters

    def __reduce__(self) -> tuple[Any, ...]:
        return TopicCheck, (self._planned,)

    def __call__(self) -> None:
        clusters = self._clusters or [planned.cluster() for planned in self._planned]
        for planned, cluster in zip(self._planned, clusters, strict=True):
            planned.verify(cluster)
