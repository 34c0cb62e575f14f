"""Topics that were deleted and created again under the same name."""

from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.errors import DataLoss, TopicRecreated
from headrace.runtime.positions import PositionTracker
from headrace.runtime.source_states import SourceState
from headrace.testing.fakes import FakeCluster, FakeEngine, fail_first
from headrace.types import Batch, Progress, Range, TopicPartition
from support.simulation import QUICK, A, B, NaiveKeyedSink, interrupted, pending_batch, records, simulate


def test_a_pending_batch_of_a_recreated_topic_is_data_loss():
    sim = simulate({A: 50, B: 0}, progress=interrupted(pending_batch((A, 0, 30))))
    sim.cluster.topic_ids["clicks"] = "id-2"
    with pytest.raises(DataLoss, match="created again"):
        sim.run()
    assert sim.sink.rows == []


def test_a_recreated_topic_is_data_loss_though_its_log_is_longer():
    sim = simulate({A: 10})
    sim.run()
    sim.cluster.topic_ids["clicks"], sim.cluster.end_offsets[A] = "id-2", 500
    with pytest.raises(DataLoss, match="created again"):
        sim.run()
    assert sim.sink.rows == records(a=10)


def test_a_topic_that_is_recreated_during_a_run_is_data_loss():
    sim = simulate({A: 10}, refresh=0.000_1)

    def react(event):
        if isinstance(event, events.CaughtUp):
            sim.cluster.topic_ids["clicks"] = "id-2"

    sim.on_event = react
    with pytest.raises(DataLoss, match="created again"):
        sim.run(None)


def test_with_on_data_loss_earliest_a_recreated_topic_is_read_from_its_beginning():
    progress = Progress({A: 10}, topic_ids={"clicks": "old"}, last_batch=3)
    sim = simulate({A: 5}, progress=progress, on_data_loss="earliest")
    sim.run()
    assert sim.sink.rows == records(a=5)
    assert sim.progress.topic_ids == {"clicks": "id-1"}
    assert len(sim.store.history()) == 1


class Checking(FakeEngine):
    """Refuses rows whose topics are not the ones that the batch was planned with, once the sink has them."""

    def __init__(self, sink, cluster):
        super().__init__(sink)
        self._cluster = cluster

    def write(self, batch):
        written = super().write(batch)
        if self._cluster.ids(batch.topic_ids) != batch.topic_ids:
            raise TopicRecreated("another id")
        return written


class ClusterOfTwo(FakeCluster):
    def logs(self, subscription):
        return {topic: replace(log, topic_id=f"{topic}-2") for topic, log in super().logs(subscription).items()}


def test_the_readable_part_of_a_pending_batch_is_stored_though_another_of_its_topics_was_recreated():
    kept, recreated = TopicPartition("kept", 0), TopicPartition("recreated", 0)
    ids = {"kept": "kept-2", "recreated": "recreated-1"}
    left = Batch(5, (Range(kept, 0, 30), Range(recreated, 0, 5)), ids)
    sim = simulate(
        {kept: 50, recreated: 9},
        guarantee="exactly-once",
        sink=NaiveKeyedSink(),
        progress=Progress({kept: 0, recreated: 0}, left, ids, last_batch=4),
        on_data_loss="earliest",
        topics=["kept", "recreated"],
    )
    sim.cluster = ClusterOfTwo(sim.cluster.end_offsets)
    sim.engine = Checking(sim.sink, sim.cluster)
    sim.stop_on(events.Retrying)
    sim.run()
    assert sorted(sim.sink.rows) == [(kept, n) for n in range(50)] + [(recreated, n) for n in range(9)]
    assert sim.progress.offsets == {kept: 50, recreated: 9}
    assert sim.progress.pending is None
    assert [change.note.partition(":")[0] for change in sim.store.history()] == [
        "batch 5 repeated without what is lost",
        "recreated[0] [5, 5)",
    ]


def test_a_topic_recreated_during_a_batch_makes_its_uncommitted_ranges_a_gap():
    """As with a sink that holds the offsets and whose tasks commit by themselves: nothing was begun in a store."""
    sim = simulate({A: 10, B: 5}, on_data_loss="earliest")
    positions = PositionTracker(
        "clicks", [SourceState(sim.pipeline.source, sim.cluster)], hr.Limits(), sim.events.append
    )
    positions.open(sim.store)
    positions.refresh_metadata()
    assert positions.next_batch(wait=False).ranges == (Range(A, 0, 10), Range(B, 0, 5))
    sim.store.commit(Batch(1, (Range(B, 0, 5),), {"clicks": "id-1"}))
    sim.cluster.topic_ids["clicks"], sim.cluster.end_offsets = "id-2", {A: 3, B: 1}
    positions.open(sim.store)
    positions.refresh_metadata()
    assert [event.lost for event in sim.events_of(events.GapFound)] == [Range(A, 0, 10), Range(B, 5, 5)]
    assert "clicks[0] [0, 10): the topic was deleted and created again (10 offsets)" in sim.store.history()[0].note
    assert positions.next_batch(wait=False).ranges == (Range(A, 0, 3), Range(B, 0, 1))
    positions.close()


def test_a_topic_that_is_recreated_again_before_a_batch_is_done_uses_up_attempts():
    sim = simulate({A: 20}, limits=hr.Limits(max_records=10), retry=replace(QUICK, attempts=3))
    trouble = {1: fail_first(1, TopicRecreated("once")), 2: fail_first(20, TopicRecreated("without end"))}
    sim.sink.before_write = lambda batch: trouble[batch.id]()
    with pytest.raises(TopicRecreated, match="without end"):
        sim.run()
    assert [event.attempt for event in sim.events_of(events.Retrying)] == [1, 1, 2]


def test_a_topic_recreated_with_fewer_partitions_loses_nothing_when_it_grows():
    sim = simulate({A: 500, B: 500}, on_data_loss="earliest")
    sim.run()
    sim.cluster.end_offsets, sim.cluster.topic_ids["clicks"] = {A: 5}, "id-2"
    sim.run()
    sim.cluster.end_offsets = {A: 5, B: 600}
    sim.run()
    assert [row for row in sim.sink.rows[1000:] if row[0] == B] == [(B, offset) for offset in range(600)]


def test_a_topic_recreated_between_two_refreshes_is_not_read_at_the_old_offsets():
    sim = simulate({A: 10}, on_data_loss="earliest")

    def react(event):
        if isinstance(event, events.BatchDone) and len(sim.sink.rows) == 10:
            sim.cluster.end_offsets, sim.cluster.topic_ids["clicks"] = {A: 20}, "id-2"
        if isinstance(event, events.CaughtUp):
            sim.stop("test")

    sim.on_event = react
    sim.run(None)
    assert sim.sink.rows == [*records(a=10), *records(a=20)]
    assert len(sim.events_of(events.GapFound)) == 1
