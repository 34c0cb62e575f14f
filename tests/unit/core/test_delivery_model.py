"""Every interleaving of two or three runs of one pipeline, each of which may die before any step, while the log grows.

The steps are those of the real delivery, the store is the real in-memory store, the planner is the real planner; the
world around them is a value, so that every state can be visited once. A run asks the sink for its newest batch, a
fan-out one member after the other, loads the store, plans, begins, writes and commits: each is a step of its own, and a
write is split into its rows or sinks. A run may die, or be suspended while the other goes on, between any two of them.
When all runs are dead a last one finishes alone, and the rows are judged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import pytest

from headrace.connectors import fanout
from headrace.connectors.memory.offset_store import Memory
from headrace.connectors.shared.batch_ledger import LastBatch
from headrace.core.delivery import Guarantee, Step, deliver, protocol, resume
from headrace.core.planner import Limits, plan
from headrace.core.sink import IdempotentSink, Sink, TransactionalSink
from headrace.core.state import AuditEntry, State
from headrace.errors import OffsetConflict
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


class MovesWithinAnEpoch(Memory):
    def set_offsets(self, expected, offsets, change, topic_ids=MappingProxyType({})):
        super().set_offsets(expected, offsets, change, topic_ids)
        self._change(lambda state: State(replace(state.progress, epoch=expected.epoch)))


class BeginsUnderAnyId(Memory):
    """Compares the ranges of a pending batch, and not its id."""

    def begin(self, batch):
        pending = self.load().pending
        if pending is None or pending.ranges != batch.ranges:
            super().begin(batch)
        else:
            self._change(lambda state: State(replace(state.progress, pending=batch)))

    def commit(self, batch):
        self._change(lambda state: State(replace(state.progress, pending=None)).committed(batch))


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

    def write(self, batch, rows):
        if ("published", batch.fingerprint) not in self.rows:
            self.rows += (("published", batch.fingerprint), *rows)


@dataclass
class KeyedByNumber(IdempotentSink):
    """Remembers its newest batch, as Delta, Iceberg and Jdbc do."""

    rows: tuple = ()
    places = ("only",)

    def newest(self, member):
        marks = [row for row in self.rows if row[0] == "published" and row[1] == member]
        return LastBatch(*marks[-1][2:]) if marks else LastBatch()

    def write(self, batch, rows):
        self.write_member(batch, rows, self.places[0])

    def write_member(self, batch, rows, member):
        if not self.newest(member).holds(batch, member):
            stored = (row if member == self.places[0] else (member, *row) for row in rows)
            self.rows += (("published", member, batch.id, batch.fingerprint), *stored)


class FannedOutByNumber(KeyedByNumber):
    """Two of them, written one after the other."""

    places = ("first", "second")


class FannedOutWithOffsets(KeyedByNumber):
    """One of them, and one that keeps offsets of its own: `sinks.Fanout` asks it what it has, and then it writes."""

    places = ("number", "offsets")

    def newest(self, member):
        return super().newest(member) if member == "number" else LastBatch(self.kept().load().last_batch)

    def kept(self):
        """The store that the second one is."""
        states = [row[2] for row in self.rows if row[:2] == ("published", "offsets")]
        return Memory({"p": (State(thawed(*states[-1]) if states else Progress()), ())}).open("p")

    def ask_kept(self, batch):
        """Whether it has the batch. Its offsets follow where those of the pipeline were moved."""
        store = self.kept()
        there = fanout._has_batch(store, batch)
        self.keep(store)
        return there

    def write_kept(self, batch, rows):
        store = self.kept()
        store._change(lambda state: state.committed(batch))
        self.keep(store)
        self.rows += tuple(("offsets", *row) for row in rows)

    def keep(self, store):
        self.rows += (("published", "offsets", frozen(store.load())),)


@dataclass
class Transactional(TransactionalSink):
    """Rows and offsets in one step."""

    rows: tuple = ()
    store: Memory = field(default_factory=Memory)

    @property
    def offsets(self):
        return self.store

    def write(self, batch, rows):
        self.offsets.commit(batch)
        self.rows += tuple(rows)


def stored_rows(sink_rows):
    return [row for row in sink_rows if row[0] != "published"]


def rows_of(batch):
    return [(r.at, offset) for r in batch.ranges for offset in range(r.start, r.until)]


def parts(sink, batch):
    """The atomic effects that a write consists of. One that answers True was the last."""
    rows = rows_of(batch)
    if isinstance(sink, FannedOutWithOffsets):
        first = sink.places[0]
        return [
            lambda: sink.write_member(batch, rows, first),
            lambda: sink.ask_kept(batch),
            lambda: sink.write_kept(batch, rows),
        ]
    if isinstance(sink, KeyedByNumber):
        return [lambda member=member: sink.write_member(batch, rows, member) for member in sink.places]
    if isinstance(sink, KeyedByBatch | Transactional):
        return [lambda: sink.write(batch, rows)]
    return [lambda row=row: sink.write(batch, [row]) for row in rows]


# the world


def frozen(progress):
    return progress and (tuple(sorted(progress.offsets.items())), progress.pending, progress.last_batch, progress.epoch)


def thawed(offsets, pending, last_batch, epoch):
    return Progress(dict(offsets), pending, {}, last_batch, epoch)


@dataclass(frozen=True)
class Run:
    """What a run knows, and what it still has to do: questions, steps of its batch, parts of a write."""

    questions: tuple[str, ...]
    newest: int = 0
    progress: Progress | None = None
    steps: tuple[Step, ...] = ()
    batch: Batch | None = None
    written: int = 0

    @cached_property
    def key(self):
        value = self.questions, self.newest, frozen(self.progress), self.steps, self.batch, self.written
        return RUN_KEYS.setdefault(value, len(RUN_KEYS))


RUN_KEYS = {}
"""A number for each state of a run: to hash the values for each state of the world takes most of the time."""


@dataclass(frozen=True)
class World:
    progress: Progress
    rows: tuple
    runs: tuple[Run | None, ...]  # None: dead
    grown: int
    reset: int | None = None  # how many rows there were when the offsets were moved back

    @property
    def key(self):
        # Which of the runs is which makes no difference.
        runs = tuple(sorted(-1 if run is None else run.key for run in self.runs))
        return frozen(self.progress), self.rows, runs, self.grown, self.reset


@dataclass(frozen=True)
class Model:
    guarantee: Guarantee
    sink: type
    store: type = Memory
    questions: tuple[str, ...] = ("newest", "load")
    runs: int = 2
    resets: bool = False
    """Whether an operator moves the offsets back once, at any moment."""
    between_batches: bool = False
    """Whether that waits until no batch is pending, as `headrace offsets reset --force` does."""

    def step(self, world: World, run: Run) -> tuple[Progress, tuple, Run | None] | None:
        """One atomic effect of a run; a dead run for a refused one; None when there is nothing to do."""
        sink = self.sink(rows=world.rows)
        store = self.store({"p": (State(world.progress), ())}).open("p")
        if isinstance(sink, TransactionalSink):
            sink.store = store
        if run.questions:
            return world.progress, world.rows, self.asked(run, store, sink)
        if not run.steps:
            planned = self.planned(world, run, sink)
            return planned and (world.progress, world.rows, planned)
        step, batch = run.steps[0], run.batch
        writes = parts(sink, batch)
        last = run.written + 1 == len(writes)

        def write():
            nonlocal last
            last = writes[run.written]() is True or last

        try:
            assert list(deliver((step,), batch, write, store)) == [step]
        except OffsetConflict:
            return world.progress, world.rows, None
        done = replace(run, steps=run.steps[1:], written=0)
        if step is Step.WRITE and not last:
            done = replace(run, written=run.written + 1)
        if not done.steps:
            done = replace(done, progress=run.progress.advanced(batch), batch=None)
        return store.load(), sink.rows, done

    def asked(self, run, store, sink):
        question, *left = run.questions
        run = replace(run, questions=tuple(left))
        if question == "load":
            progress = store.load()
            # A sink that is ahead of its store is refused: crashes and other runs must never make it look so.
            assert self.questions[0] == "load" or run.newest <= progress.newest or self.store is not Memory
            return replace(run, progress=progress)
        return replace(run, newest=max(run.newest, sink.newest(question).id if isinstance(sink, KeyedByNumber) else 0))

    def planned(self, world, run, sink):
        """The pending batch, or the next one."""
        progress = run.progress
        if progress.pending is not None:
            return replace(run, steps=resume(self.guarantee, sink), batch=progress.pending)
        numbered = replace(progress, last_batch=max(progress.last_batch, run.newest))
        batch = plan(numbered, ENDS[world.grown], Limits(), {})
        return batch and replace(run, steps=protocol(self.guarantee, sink), batch=batch)

    @property
    def places(self) -> tuple[str, ...]:
        return getattr(self.sink, "places", ("sink",))

    @property
    def start(self) -> Run:
        return Run(tuple(asked for one in self.questions for asked in (self.places if one == "newest" else (one,))))

    def explore(self) -> tuple[int, Counter]:
        """Visit every state; count them, and what was wrong in those where all runs have ended."""
        first = World(START, (), (self.start,) * self.runs, grown=0)
        seen, todo = {first.key}, [first]
        wrong = Counter()
        while todo:
            world = todo.pop()
            if world.grown == len(ENDS) - 1 and not any(world.runs):
                wrong.update(self.judge(world))
            for after in self.successors(world):
                if after.key not in seen:
                    seen.add(after.key)
                    todo.append(after)
        return len(seen), wrong

    def successors(self, world):
        if world.grown < len(ENDS) - 1:
            yield replace(world, grown=world.grown + 1)
        may_reset = self.resets and world.reset is None and world.progress.offsets != START.offsets
        if may_reset and not (self.between_batches and world.progress.pending):
            store = self.store({"p": (State(world.progress), ())}).open("p")
            store.set_offsets(world.progress, START.offsets, AuditEntry(0.0, "operator", "reset"))
            yield replace(world, progress=store.load(), reset=len(world.rows))
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
        found, run = set(), self.start
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
        stored = Counter(stored_rows(world.rows[world.reset or 0 :]))
        wanted = WANTED + [(member, *row) for member in self.places[1:] for row in WANTED]
        if any(stored[row] == 0 for row in wanted):
            found.add("missing")
        if any(count > 1 for count in stored.values()):
            found.add("duplicate")
        return found


EXACTLY, AT_LEAST, AT_MOST = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE


@pytest.mark.parametrize(
    ("sink", "runs"),
    [
        (KeyedByRow, 3),
        (KeyedByBatch, 3),
        (KeyedByNumber, 3),
        (FannedOutByNumber, 2),
        (FannedOutWithOffsets, 2),
        (Transactional, 3),
    ],
)
def test_exactly_once_loses_and_doubles_nothing_in_any_interleaving(sink, runs):
    states, wrong = Model(EXACTLY, sink, runs=runs).explore()
    assert states > 1000
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


@pytest.mark.parametrize("sink", [KeyedByBatch, KeyedByNumber, FannedOutWithOffsets, Transactional])
def test_what_is_read_again_after_a_reset_is_stored_again_though_a_run_was_alive(sink):
    states, wrong = Model(EXACTLY, sink, resets=True).explore()
    assert states > 500
    assert set(wrong) <= {"duplicate"}  # of a run that published its batch after the reset


@pytest.mark.parametrize("sink", [KeyedByBatch, KeyedByNumber, FannedOutByNumber, FannedOutWithOffsets, Transactional])
def test_a_reset_between_batches_loses_and_doubles_nothing_though_runs_are_alive(sink):
    states, wrong = Model(EXACTLY, sink, resets=True, between_batches=True).explore()
    assert states > 500
    assert not wrong


def test_without_an_epoch_a_sink_takes_what_is_read_again_for_what_it_has():
    assert Model(EXACTLY, KeyedByBatch, MovesWithinAnEpoch, resets=True).explore()[1]["missing"]


STORE_FIRST = ("load", "newest")


@pytest.mark.parametrize("sink", [KeyedByNumber, FannedOutByNumber, FannedOutWithOffsets])
def test_a_runner_that_loads_the_store_before_it_asks_the_sink_doubles_where_begin_ignores_the_id(sink):
    assert Model(EXACTLY, sink, BeginsUnderAnyId, STORE_FIRST).explore()[1]["duplicate"]


@pytest.mark.parametrize("sink", [KeyedByNumber, FannedOutByNumber, FannedOutWithOffsets])
@pytest.mark.parametrize(("store", "questions"), [(Memory, STORE_FIRST), (BeginsUnderAnyId, ("newest", "load"))])
def test_either_the_order_of_the_questions_or_the_id_at_begin_keeps_a_numbered_sink_exact(sink, store, questions):
    assert not Model(EXACTLY, sink, store, questions).explore()[1]


@pytest.mark.parametrize("store", [WithoutJournal, BeginsBlindly, CommitsBlindly])
def test_without_journal_or_a_compare_and_set_a_numbered_sink_is_not_exact(store):
    assert Model(EXACTLY, KeyedByNumber, store).explore()[1]


def test_the_judge_sees_a_planted_loss_and_a_planted_duplicate():
    model = Model(EXACTLY, KeyedByRow)
    done = Progress(offsets=dict(ENDS[-1]), last_batch=1)
    whole = tuple(WANTED)
    assert model.judge(World(done, whole, (None, None), grown=2)) == set()
    assert model.judge(World(done, whole[1:], (None, None), grown=2)) == {"missing"}
    assert model.judge(World(done, (*whole, whole[-1]), (None, None), grown=2)) == {"duplicate"}
    both = (*whole, *(("second", *row) for row in whole))
    fanned_out = Model(EXACTLY, FannedOutByNumber)
    assert fanned_out.judge(World(done, both, (None, None), grown=2)) == set()
    assert fanned_out.judge(World(done, both[:-1], (None, None), grown=2)) == {"missing"}


def test_a_range_is_what_the_model_thinks_it_is():
    assert rows_of(Batch(1, (Range(PARTITIONS[0], 1, 3),))) == [(PARTITIONS[0], 1), (PARTITIONS[0], 2)]
