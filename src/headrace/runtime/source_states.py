"""The state of a run's sources: the metadata of each cluster as last requested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from headrace.errors import ConfigError
from headrace.kafka.source_set import source_for_topic
from headrace.kafka.subscription import Partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headrace.core.planner import TopicLog
    from headrace.kafka.source import Kafka
    from headrace.kafka.subscription import Subscription
    from headrace.types import Batch, Progress, TopicPartition


class ClusterMetadata(Protocol):
    """The requests to a cluster."""

    def logs(self, subscription: Subscription) -> dict[str, TopicLog]: ...

    def existing_logs(self, topics: Iterable[str]) -> dict[str, TopicLog]: ...

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def ids(self, topics: Iterable[str]) -> dict[str, str]: ...

    def at_time(self, partitions: Iterable[TopicPartition], time: datetime) -> dict[TopicPartition, int]: ...

    def lookup_times(
        self, requests: Sequence[Mapping[TopicPartition, float]], timeout: float
    ) -> list[dict[TopicPartition, tuple[int, float]]]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class SourceState:
    """A source, its cluster, and the metadata that was last requested."""

    source: Kafka
    cluster: ClusterMetadata
    notes: Callable[[], Sequence[str]] = tuple
    """Returns notes on the source's settings, once its cluster has answered."""
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    left_out: frozenset[TopicPartition] = frozenset()
    described: bool = False
    """Whether this run has described its topics before."""

    @property
    def starts_fresh(self) -> bool:
        """Whether the run has yet to reset it to its start position, as `resume=False` requires at each start."""
        return not self.source.resume and not self.described

    def topics_seen_before(self, logs: Mapping[str, TopicLog], progress: Progress) -> set[str]:
        """Topics whose new partitions hold only records younger than the pipeline; `start` does not apply to those."""
        known = {at.topic for at in progress.offsets} & set(logs)
        subscription = self.source.subscription
        named = isinstance(subscription, Partitions) and not self.described and self.source.first != "stored"
        if self.starts_fresh or named:
            return set()  # a fresh start and partitions that are named for the first time begin at `start`
        # Topics that match the pattern later were created since then.
        return set(logs) if subscription.names is None and (self.described or known) else known

    def offsets_at_start(self, logs: Mapping[str, TopicLog], progress: Progress) -> dict[TopicPartition, int]:
        """If `start` is a time: the offsets at it, for the partitions that start there."""
        start = self.source.first
        if not isinstance(start, datetime):
            return {}
        partitions = [at for log in logs.values() for at in log.ends]
        return self.cluster.at_time([at for at in partitions if self.starts_fresh or at not in progress.offsets], start)

    def check_start(self, logs: Mapping[str, TopicLog]) -> None:
        """ConfigError if `start` has an offset for a partition that is not read."""
        start = self.source.first
        for at in start if isinstance(start, Mapping) else ():
            if at.topic not in logs or at not in logs[at.topic].ends:
                raise ConfigError(
                    f"start: {at} is not read: {self.source.subscription}",
                    hint="correct start={…}, or read this partition",
                )


class SourceStates:
    """All sources of a run."""

    def __init__(self, states: Sequence[SourceState]) -> None:
        self._states = states

    def __iter__(self) -> Iterator[SourceState]:
        return iter(self._states)

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The end offset of each partition."""
        return {at: end for state in self._states for at, end in state.ends.items()}

    @property
    def refresh(self) -> float:
        """Seconds after which topics and partitions are looked up again."""
        return min(state.source.refresh for state in self._states)

    @property
    def start_fresh(self) -> bool:
        return all(state.starts_fresh for state in self._states)

    def describe(self) -> list[tuple[SourceState, dict[str, TopicLog]]]:
        """The logs of each source; ConfigError if two sources read the same topic, as they would share its offsets."""
        logs_by_source = [(state, state.cluster.logs(state.source.subscription)) for state in self._states]
        seen: dict[str, SourceState] = {}
        for state, logs in logs_by_source:
            for topic in logs:
                if topic in seen:
                    raise ConfigError(
                        f"both {seen[topic].source.subscription} and {state.source.subscription} read {topic}",
                        hint='a pattern that leaves it out; or name the clusters: hr.Kafka(…, cluster="east")',
                    )
                seen[topic] = state
        return logs_by_source

    def poll_ends(self) -> None:
        for state in self._states:
            state.ends = state.cluster.ends(state.ends)

    def owner(self, topic: str) -> SourceState | None:
        number = source_for_topic({number: state.source for number, state in enumerate(self._states)}, topic)
        return None if number is None else self._states[number]

    def logs_of(self, batch: Batch) -> dict[str, TopicLog]:
        """The logs of the topics that a batch reads, without those that were deleted."""
        logs: dict[str, TopicLog] = {}
        for topic in {r.at.topic for r in batch.ranges}:
            logs.update((self.owner(topic) or self._states[0]).cluster.existing_logs([topic]))
        return logs

    def recreated(self, batch: Batch, *, deleted: bool = True) -> bool:
        """Whether a topic has another id than when the batch was planned, so that the offsets belong to other records.

        With `deleted`, also whether one was deleted.
        """
        for state in self._states:
            planned = {topic: topic_id for topic, topic_id in batch.topic_ids.items() if self.owner(topic) is state}
            current = state.cluster.ids(planned) if planned else {}
            if any(current.get(topic, "" if deleted else known) != known for topic, known in planned.items()):
                return True
        return False

    def must_not_lose(self, topic: str | None) -> bool:
        """Whether a gap in `topic` (None: in any topic) stops the run."""
        state = self.owner(topic) if topic is not None else None
        sources = [state.source] if state else [state.source for state in self._states]
        return any(source.resume and source.on_data_loss == "fail" for source in sources)
