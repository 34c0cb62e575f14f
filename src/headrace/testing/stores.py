"""The contract of an offset store, as tests. Subclass it and implement `new_store`.

class TestMyStore(OffsetStoreContract):
    def new_store(self):
        return MyStore(...)          # not opened; each call returns a new handle to the same offsets
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.core.state import AuditEntry, RunLease
from headrace.errors import OffsetConflict, RetriableError
from headrace.types import Batch, Progress, Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.core.offset_store import OffsetStore

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
ELSEWHERE = TopicPartition("a topic.with_odd-name", 7)


def batch(number: int, *ranges: tuple[TopicPartition, int, int], topic_id: str = "id-1", epoch: int = 0) -> Batch:
    return Batch(number, tuple(Range(*r) for r in ranges), {at.topic: topic_id for at, _, _ in ranges}, epoch=epoch)


def change(action: str) -> AuditEntry:
    return AuditEntry(1.0, "operator", action)


class OffsetStoreContract(ABC):
    """The contract of all stores."""

    @abstractmethod
    def new_store(self) -> OffsetStore:
        """A handle to the store under test, not opened yet. All handles of one test have the same offsets."""

    @pytest.fixture
    def pipeline(self) -> str:
        return f"contract-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def store(self, pipeline: str) -> Iterator[OffsetStore]:
        with self.new_store().open(pipeline) as opened:
            yield opened

    @pytest.fixture
    def rival(self, store: OffsetStore, pipeline: str) -> Iterator[OffsetStore]:
        """The store's handle of another run of the same pipeline."""
        with self.new_store().open(pipeline) as opened:
            yield opened

    def reload(self, pipeline: str) -> Progress:
        with self.new_store().open(pipeline) as opened:
            return opened.load()

    def test_a_pipeline_never_seen_before_has_an_empty_progress(self, store: OffsetStore) -> None:
        assert store.load() == Progress()

    def test_a_commit_moves_every_range_and_is_there_after_a_restart(self, store: OffsetStore, pipeline: str) -> None:
        store.commit(batch(1, (A, 0, 10), (B, 5, 7)))
        store.close()
        progress = self.reload(pipeline)
        assert progress.offsets == {A: 10, B: 7}
        assert progress.last_batch == 1
        assert progress.topic_ids == {"clicks": "id-1"}
        assert progress.pending is None

    def test_a_begun_batch_is_pending_with_its_exact_ranges_after_a_restart(
        self, store: OffsetStore, pipeline: str
    ) -> None:
        begun = batch(1, (A, 0, 10), (B, 5, 7), (ELSEWHERE, 1, 2))
        store.begin(begun)
        store.close()
        progress = self.reload(pipeline)
        assert progress.pending == begun
        assert progress.pending is not None
        assert progress.pending.topic_ids == begun.topic_ids
        assert progress.offsets == {}

    def test_the_commit_of_a_begun_batch_clears_it(self, store: OffsetStore) -> None:
        begun = batch(1, (A, 0, 10))
        store.begin(begun)
        store.commit(begun)
        assert store.load().pending is None
        assert store.load().offsets == {A: 10}

    def test_a_pending_batch_may_be_begun_again(self, store: OffsetStore) -> None:
        begun = batch(1, (A, 0, 10))
        store.begin(begun)
        store.begin(begun)
        assert store.load().pending == begun

    def test_partitions_that_a_batch_does_not_name_stay_where_they_are(self, store: OffsetStore) -> None:
        store.commit(batch(1, (A, 0, 10), (B, 0, 20)))
        store.commit(batch(2, (A, 10, 11)))
        assert store.load().offsets == {A: 11, B: 20}

    def test_an_empty_range_records_a_position(self, store: OffsetStore, pipeline: str) -> None:
        store.commit(batch(0, (A, 42, 42)))
        assert self.reload(pipeline).offsets == {A: 42}
        store.commit(batch(1, (A, 42, 50)))
        assert store.load().offsets == {A: 50}

    def test_a_commit_that_does_not_start_at_the_committed_offset_is_refused_whole(
        self, store: OffsetStore, rival: OffsetStore
    ) -> None:
        store.commit(batch(1, (A, 0, 10), (B, 0, 10)))
        with pytest.raises(OffsetConflict):
            rival.commit(batch(2, (A, 10, 20), (B, 0, 20)))
        assert store.load().offsets == {A: 10, B: 10}
        assert store.load().last_batch == 1

    def test_a_begin_that_does_not_start_at_the_committed_offset_is_refused(
        self, store: OffsetStore, rival: OffsetStore
    ) -> None:
        store.commit(batch(1, (A, 0, 10)))
        with pytest.raises(OffsetConflict):
            rival.begin(batch(1, (A, 0, 10)))
        assert store.load().pending is None

    def test_a_begin_while_another_batch_is_pending_is_refused(self, store: OffsetStore, rival: OffsetStore) -> None:
        begun = batch(1, (A, 0, 10))
        store.begin(begun)
        with pytest.raises(OffsetConflict):
            rival.begin(batch(1, (A, 0, 12)))
        assert store.load().pending == begun

    def test_begin_refuses_the_ranges_of_a_pending_batch_under_another_id(
        self, store: OffsetStore, rival: OffsetStore
    ) -> None:
        begun = batch(1, (A, 0, 10))
        store.begin(begun)
        with pytest.raises(OffsetConflict):
            rival.begin(batch(2, (A, 0, 10)))
        assert store.load().pending == begun

    def test_a_commit_while_another_batch_is_pending_is_refused(self, store: OffsetStore, rival: OffsetStore) -> None:
        begun = batch(1, (A, 0, 10))
        store.begin(begun)
        with pytest.raises(OffsetConflict):
            rival.commit(batch(1, (A, 0, 12)))
        assert store.load().pending == begun
        assert store.load().offsets == {}

    def test_of_two_runs_with_the_same_batch_one_commits_and_the_other_is_refused(
        self, store: OffsetStore, rival: OffsetStore
    ) -> None:
        same = batch(1, (A, 0, 10))
        store.begin(same)
        rival.begin(same)
        store.commit(same)
        with pytest.raises(OffsetConflict):
            rival.commit(same)
        assert store.load().offsets == {A: 10}

    def test_a_zombie_that_wakes_after_its_successor_went_on_changes_nothing(
        self, store: OffsetStore, rival: OffsetStore
    ) -> None:
        old = batch(1, (A, 0, 10))
        store.begin(old)
        rival.commit(old)
        rival.begin(batch(2, (A, 10, 20)))
        with pytest.raises(OffsetConflict):
            store.commit(old)
        assert rival.load().offsets == {A: 10}
        assert rival.load().pending == batch(2, (A, 10, 20))

    def test_pipelines_do_not_see_each_other(self, store: OffsetStore) -> None:
        store.commit(batch(1, (A, 0, 10)))
        with self.new_store().open(f"other-{uuid.uuid4().hex[:12]}") as other:
            assert other.load() == Progress()

    def test_a_load_sees_what_another_handle_committed_last(self, store: OffsetStore, rival: OffsetStore) -> None:
        for number in range(1, 6):
            store.commit(batch(number, (A, number - 1, number)))
            assert rival.load().offsets == {A: number}

    def test_a_recreated_topic_is_remembered_by_a_move_and_refused_by_a_commit(self, store: OffsetStore) -> None:
        store.commit(batch(1, (A, 0, 10), topic_id="old"))
        for refused in (store.begin, store.commit):
            with pytest.raises(OffsetConflict, match="recreated"):
                refused(batch(2, (A, 10, 11), topic_id="new"))
        store.set_offsets(store.load(), {}, change("gap"), {"clicks": "new"})
        store.commit(batch(2, (A, 10, 11), topic_id="new"))
        assert store.load().topic_ids == {"clicks": "new"}

    def test_a_thousand_partitions_move_together(self, store: OffsetStore, pipeline: str) -> None:
        many = [TopicPartition("wide", number) for number in range(1000)]
        first = batch(1, *((at, 0, 2**40) for at in many))
        store.begin(first)
        store.commit(first)
        assert self.reload(pipeline).offsets == dict.fromkeys(many, 2**40)

    def test_offsets_moved_manually_go_in_any_direction_and_clear_the_pending_batch(
        self, store: OffsetStore, pipeline: str
    ) -> None:
        store.commit(batch(1, (A, 0, 10), (B, 0, 20)))
        store.begin(batch(2, (A, 10, 15)))
        store.set_offsets(store.load(), {A: 3}, change("reset"))
        progress = self.reload(pipeline)
        assert progress.offsets == {A: 3, B: 20}
        assert progress.pending is None
        assert progress.last_batch == 2  # some sinks name their files by it, and may hold the dropped batch

    def test_each_move_back_begins_an_epoch_and_a_move_forward_does_not(
        self, store: OffsetStore, pipeline: str
    ) -> None:
        store.commit(batch(1, (A, 0, 10), (B, 0, 20)))
        assert store.load().epoch == 0
        store.set_offsets(store.load(), {A: 15, B: 20}, change("skip"))
        assert self.reload(pipeline).epoch == 0
        store.set_offsets(store.load(), {A: 30, B: 3}, change("reset"))
        store.set_offsets(store.load(), {A: 3}, change("reset"))
        store.begin(batch(2, (A, 3, 4), epoch=2))
        progress = self.reload(pipeline)
        assert progress.epoch == 2
        assert progress.topic_ids == {"clicks": "id-1"}
        assert progress.pending == batch(2, (A, 3, 4), epoch=2)
        store.commit(batch(2, (A, 3, 4), epoch=2))
        assert self.reload(pipeline).epoch == 2

    @pytest.mark.parametrize("offset", [10, 12])
    def test_a_move_into_the_pending_batch_begins_an_epoch_for_its_rows_may_be_stored(
        self, store: OffsetStore, pipeline: str, offset: int
    ) -> None:
        store.commit(batch(1, (A, 0, 10)))
        store.begin(batch(2, (A, 10, 15)))
        store.set_offsets(store.load(), {A: offset}, change("reset"))
        progress = self.reload(pipeline)
        assert (progress.offsets, progress.pending, progress.epoch) == ({A: offset}, None, 1)

    def test_a_move_behind_the_pending_batch_begins_no_epoch(self, store: OffsetStore, pipeline: str) -> None:
        store.commit(batch(1, (A, 0, 10)))
        store.begin(batch(2, (A, 10, 15)))
        store.set_offsets(store.load(), {A: 15}, change("skip"))
        assert self.reload(pipeline).epoch == 0

    def test_a_batch_planned_before_the_offsets_were_moved_back_is_refused(
        self, store: OffsetStore, rival: OffsetStore
    ) -> None:
        planned = batch(1, (A, 0, 10))
        store.commit(planned)
        rival.set_offsets(rival.load(), {A: 0}, change("reset"))
        for step in (store.begin, store.commit):
            with pytest.raises(OffsetConflict, match="moved back"):
                step(planned)
        assert rival.load().offsets == {A: 0}

    def test_offsets_that_changed_since_they_were_read_are_not_moved_manually(
        self, store: OffsetStore, rival: OffsetStore
    ) -> None:
        store.commit(batch(1, (A, 0, 10)))
        seen = rival.load()
        store.commit(batch(2, (A, 10, 20)))
        with pytest.raises(OffsetConflict):
            rival.set_offsets(seen, {A: 0}, change("reset"))
        assert store.load().offsets == {A: 20}
        assert list(store.history()) == []

    def test_a_run_whose_offsets_were_moved_manually_is_refused(self, store: OffsetStore, rival: OffsetStore) -> None:
        running = batch(2, (A, 10, 20))
        store.commit(batch(1, (A, 0, 10)))
        store.begin(running)
        rival.set_offsets(rival.load(), {A: 0}, change("reset"))
        with pytest.raises(OffsetConflict):
            store.commit(running)
        assert rival.load().offsets == {A: 0}

    def test_every_manual_change_is_in_the_history_in_order(self, store: OffsetStore, pipeline: str) -> None:
        store.commit(batch(1, (A, 0, 10)))
        moved = AuditEntry(1.5, "ann@host", "reset", {A: 10}, {A: 3}, "to 3")
        gap = AuditEntry(2.5, "a run", "gap", {ELSEWHERE: 1}, {ELSEWHERE: 7}, "naïve ✓")
        store.set_offsets(store.load(), {A: 3}, moved)
        store.append_audit(gap)
        store.commit(batch(2, (A, 3, 4), epoch=1))
        with self.new_store().open(pipeline) as later:
            assert list(later.history()) == [moved, gap]

    def test_heartbeats_are_stored_between_the_batches_of_a_run(self, store: OffsetStore, pipeline: str) -> None:
        store.commit(batch(1, (A, 0, 10)))
        run = RunLease("host", 123, 1.0, 2.0, "boot")
        store.set_lease(run)
        store.begin(batch(2, (A, 10, 20)))
        if (unused := store.heartbeat_handle()) is not None:
            unused.close()  # like after a failed `open`: the run has another connection
        if (beats := store.heartbeat_handle()) is not None:
            beats.open(pipeline)
            assert beats.heartbeat(replace(run, beat=3.0))
            lease = store.lease()
            assert lease == replace(run, beat=3.0)
            beats.close()
        store.commit(batch(2, (A, 10, 20)))
        assert store.lease() is not None
        assert store.load().offsets == {A: 20}
        assert list(store.history()) == []

    def test_a_lease_is_visible_until_it_is_released(self, store: OffsetStore, rival: OffsetStore) -> None:
        run = RunLease("host", 123, 1.0, 2.0)
        store.set_lease(run)
        store.begin(batch(1, (A, 0, 10)))
        store.commit(batch(1, (A, 0, 10)))
        assert rival.read()[0].run == run
        store.set_lease(None)
        assert rival.read()[0].run is None
        assert rival.load().offsets == {A: 10}

    def test_a_swap_of_a_state_that_another_handle_changed_is_refused(
        self, store: OffsetStore, rival: OffsetStore
    ) -> None:
        store.commit(batch(1, (A, 0, 10)))
        old, version = rival.read()
        store.commit(batch(2, (A, 10, 20)))
        assert rival.swap(version, old, old.committed(batch(2, (A, 10, 15)))) is False
        assert store.load().offsets == {A: 20}

    def test_of_many_runs_at_once_each_step_is_won_by_exactly_one(self, pipeline: str) -> None:
        rivals = 4
        self.reload(pipeline)  # create before the race what a store creates at its first use

        def race(number: int) -> tuple[int, int]:
            won = unknown = 0
            with self.new_store().open(pipeline) as handle:
                for step in range(10):
                    try:
                        handle.commit(batch(step + 1, (A, step, step + 1)))
                        won += 1
                    except OffsetConflict:
                        continue
                    except RetriableError:
                        unknown += 1
            return won, unknown

        with ThreadPoolExecutor(rivals) as pool:
            results = list(pool.map(race, range(rivals)))
        won, unknown = (sum(counts) for counts in zip(*results, strict=True))
        # If two threads won the same step, the count would exceed the offset.
        assert won <= self.reload(pipeline).offsets[A] <= won + unknown
        assert won > 0

    def test_opened_for_reading_it_shows_what_is_stored(self, pipeline: str) -> None:
        with self.new_store().open(pipeline) as store:
            store.commit(batch(1, (A, 0, 10)))
            store.append_audit(change("noted"))
        reader = self.new_store()
        assert reader.open_for_reading(pipeline) is None
        with reader:
            assert reader.read()[0].progress.offsets == {A: 10}
            assert [entry.action for entry in reader.history()] == ["noted"]

    def test_closing_twice_is_harmless(self, store: OffsetStore) -> None:
        store.close()
        store.close()
