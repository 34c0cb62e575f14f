"""Every interleaving of two runs of one pipeline, each of which may die before any step, while the log grows.

The steps are those of the real delivery, the store is the real in-memory store, the planner is the real planner; the
world around them is a value, so that every state can be visited once. A write is split into its rows: a run may die,
or be overtaken by the other, between any two of them. When both runs are dead a last one finishes alone, and the rows
are judged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from headrace.delivery import Guarantee, Step, deliver, protocol, resume
from headrace.errors import OffsetConflict
from headrace.planner import Limits, plan
from headrace.sinks.base import IdempotentSink, Sink, TransactionalSink
from headrace.stores.memory import Memory
from headrace.stores.state import State
from headrace.types import Batch, Progress, Range, TopicPartition

PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))
# The log grows twice: an offset set back by a zombie shows only if the batch planned anew differs from the old one.
ENDS = tuple(dict(zip(PARTITIONS, ends, strict=True)) for ends in ((1, 1), (2, 1), (3, 2)))
START = Progress(offsets=dict.fromkeys(PARTITIONS, 0))
WANTED = [(at, offset) for at in PARTITIONS for offset in range(ENDS[-1][at])]


# the safeguards, each with a twin that lacks it


class WithoutJournal(Memory):
    def begin(self, batch):
        before = self.read()[0]
        super().begin(batch)
        self._change(lambda _: before)


class BeginsBlindly(Memory):
    def begin(self, batch):
        self._change(lambda state: State(replace(state.progress, pending=batch)))


class CommitsBlindly(Memory):
    def commit(self, batch):
        self._change(lambda state: State(state.progress.advanced(batch)))


# sinks whose whole content is a tuple of rows


@dataclass
class Plain(Sink):
    rows: tuple = ()

    def write(self, batch, rows):
        self.rows += tuple(rows)


@dataclass
class KeyedByRow(IdempotentSink):
    rows: tuple = ()

    def write(self, batch, rows):
        self.rows += tuple(row for row in rows if row not in self.rows)


@dataclass
class KeyedByBatch(IdempotentSink):
    """Publishes a batch whole, under a name derived from its ranges."""

    rows: tuple = ()
    whole = True

    def write(self, batch, rows):
        if ("published", batch.fingerprint) not in self.rows:
            self.rows += (("published", batch.fingerprint), *rows)


@dataclass
class Transactional(Memory, TransactionalSink):
    """Rows and offsets in one step."""

    rows: tuple = ()
    _all: dict = field(default_factory=dict)
    _pipeline: str = "p"
    whole = True

    def write(self, batch, rows):
        self.commit(batch)
        self.rows += tuple(rows)


def stored_rows(sink_rows):
    return [row for row in sink_rows if row[0] != "published"]


def rows_of(batch):
    return [(r.at, offset) for r in batch.ranges for offset in range(r.start, r.until)]


# the world


@dataclass(frozen=True)
class Run:
    """What a run still has to do: the steps left of its batch, and how many rows of a write are written."""

    steps: tuple[Step, ...] = ()
    batch: Batch | None = None
    written: int = 0


@dataclass(frozen=True)
class World:
    progress: Progress
    rows: tuple
    runs: tuple[Run | None, ...]  # None: dead
    grown: int

    @property
    def key(self):
        offsets = tuple(sorted(self.progress.offsets.items()))
        return offsets, self.progress.pending, self.progress.last_batch, self.rows, self.runs, self.grown


@dataclass(frozen=True)
class Model:
    guarantee: Guarantee
    sink: type
    store: type = Memory

    def step(self, world: World, run: Run) -> tuple[Progress, tuple, Run | None] | None:
        """One atomic effect of a run; a dead run for a refused one; None when there is nothing to do."""
        sink = self.sink(rows=world.rows)
        if isinstance(sink, TransactionalSink):
            sink._all["p"] = (State(world.progress), ())
            store = sink
        else:
            store = self.store({"p": (State(world.progress), ())}).open("p")
        if not run.steps:
            return self.begin_batch(world, store, sink)
        step, batch = run.steps[0], run.batch
        rows = rows_of(batch)
        done = replace(run, steps=run.steps[1:], written=0)
        if step is Step.WRITE and not getattr(sink, "whole", False):
            rows = rows[run.written : run.written + 1]
            if run.written + 1 < len(batch):
                done = replace(run, written=run.written + 1)
        try:
            assert list(deliver((step,), batch, lambda: sink.write(batch, rows), store)) == [step]
        except OffsetConflict:
            return world.progress, world.rows, None
        return store.load(), sink.rows, done

    def begin_batch(self, world, store, sink):
        progress = store.load()
        if progress.pending is not None:
            return progress, world.rows, Run(resume(self.guarantee, sink), progress.pending)
        batch = plan(progress, ENDS[world.grown], Limits(), {})
        return None if batch is None else (progress, world.rows, Run(protocol(self.guarantee, sink), batch))

    def explore(self) -> tuple[int, Counter]:
        """Visit every state; count them, and what was wrong in those where both runs have ended."""
        first = World(START, (), (Run(), Run()), grown=0)
        seen, todo = {first.key}, [first]
        wrong = Counter()
        while todo:
            world = todo.pop()
            if world.grown == len(ENDS) - 1 and world.runs == (None, None):
                wrong.update(self.judge(world))
            for after in self.successors(world):
                if after.key not in seen:
                    seen.add(after.key)
                    todo.append(after)
        return len(seen), wrong

    def successors(self, world):
        if world.grown < len(ENDS) - 1:
            yield replace(world, grown=world.grown + 1)
        for which, run in enumerate(world.runs):
            if run is None:
                continue
            yield self.moved(world, which, world.progress, world.rows, None)
            if (after := self.step(world, run)) is not None:
                yield self.moved(world, which, *after)

    @staticmethod
    def moved(world, which, progress, rows, run):
        runs = tuple(run if number == which else other for number, other in enumerate(world.runs))
        return replace(world, progress=progress, rows=rows, runs=runs)

    def judge(self, world) -> set[str]:
        """Let a last run finish alone, then compare what is stored with what was sent."""
        found, run = set(), Run()
        for _ in range(60):
            after = self.step(world, run)
            if after is None:
                break
            world = replace(world, progress=after[0], rows=after[1])
            run = after[2]
            if run is None:
                return {"stuck"}
        else:
            return {"stuck"}
        stored = Counter(stored_rows(world.rows))
        if any(stored[row] == 0 for row in WANTED):
            found.add("missing")
        if any(count > 1 for count in stored.values()):
            found.add("duplicate")
        return found


EXACTLY, AT_LEAST, AT_MOST = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE


@pytest.mark.parametrize("sink", [KeyedByRow, KeyedByBatch, Transactional])
def test_exactly_once_loses_and_doubles_nothing_in_any_interleaving(sink):
    states, wrong = Model(EXACTLY, sink).explore()
    assert states > 300
    assert not wrong


def test_at_least_once_loses_nothing_in_any_interleaving_and_does_double():
    states, wrong = Model(AT_LEAST, Plain).explore()
    assert states > 300
    assert set(wrong) == {"duplicate"}


def test_at_most_once_doubles_nothing_in_any_interleaving_and_does_lose():
    states, wrong = Model(AT_MOST, Plain).explore()
    assert states > 300
    assert set(wrong) == {"missing"}


def test_without_the_journal_exactly_once_breaks():
    assert Model(EXACTLY, KeyedByBatch, WithoutJournal).explore()[1]["duplicate"]


def test_without_the_compare_and_set_of_begin_exactly_once_breaks():
    assert Model(EXACTLY, KeyedByBatch, BeginsBlindly).explore()[1]


def test_without_the_compare_and_set_of_commit_exactly_once_breaks():
    assert Model(EXACTLY, KeyedByBatch, CommitsBlindly).explore()[1]


def test_without_the_compare_and_set_of_commit_at_most_once_doubles():
    assert Model(AT_MOST, Plain, CommitsBlindly).explore()[1]["duplicate"]


def test_the_judge_sees_a_planted_loss_and_a_planted_duplicate():
    model = Model(EXACTLY, KeyedByRow)
    done = Progress(offsets=dict(ENDS[-1]), last_batch=1)
    whole = tuple(WANTED)
    assert model.judge(World(done, whole, (None, None), grown=2)) == set()
    assert model.judge(World(done, whole[1:], (None, None), grown=2)) == {"missing"}
    assert model.judge(World(done, (*whole, whole[-1]), (None, None), grown=2)) == {"duplicate"}


def test_a_range_is_what_the_model_thinks_it_is():
    assert rows_of(Batch(1, (Range(PARTITIONS[0], 1, 3),))) == [(PARTITIONS[0], 1), (PARTITIONS[0], 2)]
