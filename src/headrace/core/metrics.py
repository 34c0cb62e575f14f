"""The complete list of metrics that Headrace exports. A test compares docs/metrics.md with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    """Counts from 0 at the start of the run."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    description: str
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram."""


_PIPELINE = ("pipeline",)
_GROUP = ("cluster_name", "group")
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


def _counter(name: str, unit: str, description: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, unit, (*_PIPELINE, *labels), description)


def _gauge(name: str, unit: str, description: str, labels: tuple[str, ...] = _PIPELINE) -> Metric:
    return Metric(name, Kind.GAUGE, unit, labels, description)


BATCHES = _counter("headrace_batches_total", "batches", "Batches stored")
RECORDS = _counter("headrace_records_total", "records", "Records read; offsets, where records were not counted")
ROWS = _counter("headrace_rows_total", "rows", "Rows written, where they were counted")
BYTES = _counter("headrace_bytes_total", "bytes", "Bytes of keys and values read; measured with Limits(max_bytes=…)")
BATCH_SECONDS = Metric(
    "headrace_batch_seconds",
    Kind.HISTOGRAM,
    "seconds",
    _PIPELINE,
    "Duration of a batch from its first step to its last",
    _SECONDS,
)
PHASE_SECONDS = _counter(
    "headrace_batch_phase_seconds_total",
    "seconds",
    "Time spent in each phase of the batches: metadata, plan, write, commit",
    "phase",
)
SCHEDULING_DELAY = _gauge(
    "headrace_scheduling_delay_seconds", "seconds", "How long records of the last batch waited for it, as far as known"
)
PRODUCE_DELAY = _gauge(
    "headrace_produce_delay_seconds",
    "seconds",
    "From the timestamps of records in Kafka to the end of their batch: quantiles 0.5, 0.99 and 1 of one batch in 10"
    " seconds",
    (*_PIPELINE, "quantile"),
)
LAST_BATCH = _gauge("headrace_last_batch_timestamp_seconds", "seconds", "Unix time at which the last batch was stored")
RUN_STARTED = _gauge("headrace_run_start_timestamp_seconds", "seconds", "Unix time at which the run started")
BAD_RECORDS = _counter("headrace_bad_records_dropped_total", "records", 'Bad records dropped by on_error="drop"')
DEAD_LETTERS = _counter("headrace_dead_letters_total", "records", "Records stored as dead letters")
SKIPPED_BATCHES = _counter("headrace_batches_skipped_total", "batches", "Batches abandoned by at-most-once")
TIMEOUTS = _counter("headrace_batch_timeouts_total", "batches", "Batches cancelled after timeout=")
RETRIES = _counter("headrace_retries_total", "retries", "Failures that the run retried")
LOST_OFFSETS = _counter("headrace_lost_offsets_total", "offsets", "Offsets in gaps that the run skipped")
MIRROR_FAILURES = _counter("headrace_mirror_failures_total", "failures", "Failed commits to the group of mirror_group=")

GROUP_OFFSET = _gauge(
    "kafka_consumergroup_group_offset", "offsets", "Committed offset", (*_GROUP, "topic", "partition")
)
GROUP_LAG = _gauge(
    "kafka_consumergroup_group_lag",
    "offsets",
    "Offsets between the committed one and the end of the partition",
    (*_GROUP, "topic", "partition"),
)
GROUP_LAG_SECONDS = _gauge(
    "kafka_consumergroup_group_lag_seconds",
    "seconds",
    "How long ago the end of the partition was at the committed offset, interpolated",
    (*_GROUP, "topic", "partition"),
)
GROUP_MAX_LAG = _gauge("kafka_consumergroup_group_max_lag", "offsets", "Largest lag of a partition", _GROUP)
GROUP_MAX_LAG_SECONDS = _gauge(
    "kafka_consumergroup_group_max_lag_seconds", "seconds", "Largest lag of a partition in seconds", _GROUP
)
GROUP_SUM_LAG = _gauge("kafka_consumergroup_group_sum_lag", "offsets", "Lag of all partitions", _GROUP)
GROUP_TOPIC_SUM_LAG = _gauge(
    "kafka_consumergroup_group_topic_sum_lag", "offsets", "Lag of the partitions of a topic", (*_GROUP, "topic")
)
LATEST_OFFSET = _gauge(
    "kafka_partition_latest_offset",
    "offsets",
    "End of the partition: the next offset",
    ("cluster_name", "topic", "partition"),
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
