"""Topics that were deleted and created again under the same name."""

from dataclasses import replace

import pytest

import headrace as hr
from headrace import events
from headrace.errors import DataLoss, TopicRecreated
from headrace.runtime.positions import PositionTracker, SourceState
from headrace.types import Batch, Progress, Range, TopicPartition
from support.fake_runs import QUICK, A, B, Cluster, Engine, Keyed, World, begun, failing, pending, records


def test_a_pending_batch_of_a_topic_made_anew_is_data_loss():
    world = World({A: 50, B: 0}, progress=begun(pending((A, 0, 30))))
    world.cluster.topic_id = "id-2"
    with pytest.raises(DataLoss, match="created again"):
        world.run()
    assert world.sink.rows == []


def test_a_topic_made_anew_is_data_loss_though_its_log_is_longer():
    world = World({A: 10})
    world.run()
    world.cluster.topic_id, world.cluster.ends_[A] = "id-2", 500
    with pytest.raises(DataLoss, match="created again"):
        world.run()
    assert world.sink.rows == records(a=10)


def test_a_topic_made_anew_while_running_is_noticed():
    world = World({A: 10}, refresh=0.000_1)
    runner = world.runner()

    def react(event):
        if isinstance(event, events.CaughtUp):
            world.cluster.topic_id = "id-2"

    world.react = react
    with pytest.raises(DataLoss, match="created again"):
        runner.run()


def test_told_to_go_on_a_run_reads_a_topic_made_anew_from_its_beginning():
    progress = Progress({A: 10}, topic_ids={"clicks": "old"}, last_batch=3)
    world = World({A: 5}, progress=progress, on_data_loss="earliest")
    world.run()
    assert world.sink.rows == records(a=5)
    assert world.progress.topic_ids == {"clicks": "id-1"}
    assert len(world.store.history()) == 1


class Checking(Engine):
    """Refuses rows whose topics are not the ones that the batch was planned with, once the sink has them."""

    def __init__(self, sink, cluster):
        super().__init__(sink)
        self._cluster = cluster

    def write(self, batch):
        written = super().write(batch)
        if self._cluster.ids(batch.topic_ids) != batch.topic_ids:
            raise TopicRecreated("another id")
        return written


class ClusterOfTwo(Cluster):
    def logs(self, subscription):
        return {topic: replace(log, topic_id=f"{topic}-2") for topic, log in super().logs(subscription).items()}


def test_the_part_that_is_left_of_a_pending_batch_is_stored_though_another_of_its_topics_was_recreated():
    kept, recreated = TopicPartition("kept", 0), TopicPartition("recreated", 0)
    ids = {"kept": "kept-2", "recreated": "recreated-1"}
    left = Batch(5, (Range(kept, 0, 30), Range(recreated, 0, 5)), ids)
    world = World(
        {kept: 50, recreated: 9},
        guarantee="exactly-once",
        sink=Keyed(),
        progress=Progress({kept: 0, recreated: 0}, left, ids, last_batch=4),
        on_data_loss="earliest",
        topics=["kept", "recreated"],
    )
    world.cluster = ClusterOfTwo(world.cluster.ends_)
    world.engine = Checking(world.sink, world.cluster)
    runner = world.runner()
    world.react = lambda event: runner.stop("it does not end") if isinstance(event, events.Retrying) else None
    runner.run("caught-up")
    assert sorted(world.sink.rows) == [(kept, n) for n in range(50)] + [(recreated, n) for n in range(9)]
    assert world.progress.offsets == {kept: 50, recreated: 9}
    assert world.progress.pending is None
    assert [change.note.partition(":")[0] for change in world.store.history()] == [
        "batch 5 repeated without what is lost",
        "recreated[0] [5, 5)",
    ]


def test_a_topic_made_anew_while_a_batch_was_read_takes_the_ranges_along_that_are_not_committed():
    """As with a sink that holds the offsets and whose tasks commit by themselves: nothing was begun in a store."""
    world = World({A: 10, B: 5}, on_data_loss="earliest")
    reading = PositionTracker("clicks", [SourceState(world.pipeline.source, world.cluster)], hr.Limits(), world.observe)
    reading.open(world.store)
    reading.look()
    assert reading.next(wait=False).ranges == (Range(A, 0, 10), Range(B, 0, 5))
    world.store.commit(Batch(1, (Range(B, 0, 5),), {"clicks": "id-1"}))
    world.cluster.topic_id, world.cluster.ends_ = "id-2", {A: 3, B: 1}
    reading.open(world.store)
    reading.look()
    assert [event.lost for event in world.all(events.GapFound)] == [Range(A, 0, 10), Range(B, 5, 5)]
    assert "clicks[0] [0, 10): the topic was deleted and created again (10 offsets)" in world.store.history()[0].note
    assert reading.next(wait=False).ranges == (Range(A, 0, 3), Range(B, 0, 1))
    reading.close()


def test_a_recreated_topic_that_is_met_again_before_any_batch_is_done_uses_up_attempts():
    world = World({A: 20}, limits=hr.Limits(max_records=10), retry=replace(QUICK, attempts=3))
    trouble = {1: failing(1, TopicRecreated("once")), 2: failing(20, TopicRecreated("without end"))}
    world.sink.before = lambda batch: trouble[batch.id]()
    with pytest.raises(TopicRecreated, match="without end"):
        world.run()
    assert [event.attempt for event in world.all(events.Retrying)] == [1, 1, 2]


def test_a_topic_made_anew_with_fewer_partitions_loses_nothing_when_it_grows():
    world = World({A: 500, B: 500}, on_data_loss="earliest")
    world.run()
    world.cluster.ends_, world.cluster.topic_id = {A: 5}, "id-2"
    world.run()
    world.cluster.ends_ = {A: 5, B: 600}
    world.run()
    assert [row for row in world.sink.rows[1000:] if row[0] == B] == [(B, offset) for offset in range(600)]


def test_a_topic_made_anew_between_two_looks_is_not_read_on_at_the_old_offsets():
    world = World({A: 10}, on_data_loss="earliest")
    runner = world.runner()

    def react(event):
        if isinstance(event, events.BatchDone) and len(world.sink.rows) == 10:
            world.cluster.ends_, world.cluster.topic_id = {A: 20}, "id-2"
        if isinstance(event, events.CaughtUp):
            runner.stop("test")

    world.react = react
    runner.run()
    assert world.sink.rows == [*records(a=10), *records(a=20)]
    assert len(world.all(events.GapFound)) == 1
