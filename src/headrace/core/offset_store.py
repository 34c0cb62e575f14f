"""The contract of an offset store."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.core import format_version
from headrace.core.resource import Resource
from headrace.core.state import AuditEntry, RunLease, State
from headrace.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.types import Batch, Progress, TopicPartition

_ATTEMPTS = 20


class Heartbeats(Protocol):
    """What the thread with the heartbeats needs of a store."""

    def open(self, pipeline: str) -> object: ...

    def close(self) -> None: ...

    def beat(self, run: RunLease) -> bool: ...


class OffsetStore(Resource, ABC):
    """Where one pipeline's offsets live. Every method is atomic: it happened whole or not at all.

    A run calls, in this order: `open` once; `load` once and again after every failure; then per batch
    `begin` and `commit` as its guarantee asks. The delivery never repeats a call whose outcome is unknown
    without a `load` in between, so no method needs to recognise a repeat of itself.

    An adapter gives three things: `read`, `swap` and `history`. What may follow what is decided here, once for
    all systems. Adapters raise RetriableError while the system behind them does not answer.
    `headrace.testing` ships the suite that holds an adapter to this contract.
    """

    _signer: RunLease | None = None
    """The run that signed through this handle: once another one has signed, this handle changes nothing more."""

    @abstractmethod
    def read(self) -> tuple[State, Any]:
        """What is stored of the pipeline this was opened for, never older than the last swap by anyone, and the
        version of it. A pipeline never seen before has an empty State."""

    @abstractmethod
    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        """Replace `old`, read with `version`, by `new`, and append `change` to the audit log; durable on return.

        False, with nothing changed, if anybody else changed it since that read.
        """

    @abstractmethod
    def history(self) -> Sequence[AuditEntry]:
        """The audit log, oldest first."""

    def open_for_reading(self, pipeline: str) -> str | None:
        """Open it for `read` and `history` alone, without creating anything: no file, table or topic.

        Says what is missing if there is nothing to read; then it is not open. A store whose `open` creates nothing
        needs none of its own.
        """
        self.open(pipeline)
        return None

    def consumer_group(self, pipeline: str) -> str | None:
        """The Kafka consumer group that keeps the offsets, if one does: nothing else may commit to it."""
        return None

    def durability_warnings(self, pipeline: str) -> list[str]:
        """What to know about keeping offsets here, asked of the system itself. Needs no `open`, changes nothing."""
        return []

    def load(self) -> Progress:
        """The committed offsets, the pending batch if any, the topic ids and the last batch's id."""
        return self.read()[0].progress

    def begin(self, batch: Batch) -> None:
        """Journal the exact ranges of `batch` as pending, before anything is written.

        A compare-and-set: OffsetConflict if a range does not start at its committed offset, or if another batch is
        pending: other ranges, another id, other topic ids; or if another run has signed since this handle did. A
        partition never committed accepts any start.
        """
        self._change(lambda state: state.still_of(self._signer).same_epoch(batch).begun(batch))

    def commit(self, batch: Batch) -> None:
        """Move every range's offset from its start to its until, and clear the pending batch.

        A compare-and-set over all ranges together: OffsetConflict if any committed offset is not the
        range's start, if another batch is pending, or if another run has signed since this handle did. Also called
        without `begin`: under at-most-once, and with empty ranges to fix the position a new partition is first read
        from.
        """
        self._change(lambda state: state.still_of(self._signer).same_epoch(batch).committed(batch))

    def move(
        self,
        expected: Progress,
        offsets: Mapping[TopicPartition, int],
        change: AuditEntry,
        topic_ids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Set offsets in any direction, and drop the pending batch; OffsetConflict if not as `expected`."""
        numbered = replace(change, last_batch=expected.newest)
        self._change(lambda state: state.still_of(self._signer).moved(expected, offsets, topic_ids), numbered)

    def import_progress(self, progress: Progress, change: AuditEntry) -> None:
        """Take over the progress of another store, pending batch and all; OffsetConflict if there is some here."""
        self._change(lambda state: state.adopted(progress), change)

    def sign(self, run: RunLease | None, allow: Callable[[RunLease | None], None] = lambda found: None) -> None:
        """Say that `run` is at this pipeline, or (None) that it is no more.

        `allow` is given the sign that is there, and raises where that one must stay: compared and set in one.
        """

        def signed(state: State) -> State:
            allow(state.run)
            return replace(state, run=run)

        self._change(signed)
        self._signer = run

    def heard(self) -> RunLease | None:
        """The run that signed last, with its newest heartbeat."""
        return self.read()[0].run

    def beat(self, run: RunLease) -> bool:
        """Renew the heartbeat of `run`; False, with nothing changed, if the sign is no longer its own."""
        own = False

        def renewed(state: State) -> State:
            nonlocal own
            own = run.same(state.run)
            return replace(state, run=run) if own else state

        self._change(renewed)
        return own

    def heartbeat_handle(self) -> Heartbeats | None:
        """A second handle, not open yet, for the thread that sends the heartbeats of a run beside its batches.

        None where there is none: then the run sends them between two batches.
        """
        return None

    def record(self, change: AuditEntry) -> None:
        """Append to the audit log without moving anything."""
        self._change(lambda state: state, change)

    def _change(self, decide: Callable[[State], State], change: AuditEntry | None = None) -> None:
        for _ in range(_ATTEMPTS):
            old, version = self.read()
            new = decide(old)
            if (new == old and change is None) or self.swap(version, old, new, change):
                return
        raise RetriableError(f"{self!r} changed under each of {_ATTEMPTS} attempts to change it")


class DocumentStore(OffsetStore):
    """A store in any system that can replace one text if it is still the one that was read.

    Two methods make an adapter: see docs/write-a-store.md.
    """

    format: Final = 1
    """Of the document; see `format_version`."""
    kept_changes = 200
    """How much of the audit log is kept in the document."""

    @abstractmethod
    def get(self) -> tuple[str | None, Any]:
        """The pipeline's text, None if there is none yet, and its version."""

    @abstractmethod
    def put(self, text: str, version: Any) -> bool:
        """Replace the text read with `version`; False, with nothing changed, if somebody else was first."""

    def read(self) -> tuple[State, Any]:
        text, version = self.get()
        if text is None:
            return State(), (version, [])
        document = json.loads(text)
        format_version.read_version(document, self.format, repr(self))
        return State.from_json(json.dumps(document["state"])), (version, document["history"])

    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        inner, history = version
        if change is not None:
            history = [*history, json.loads(change.to_json())][-self.kept_changes :]
        document = {format_version.KEY: self.format, "state": json.loads(new.to_json()), "history": history}
        return self.put(json.dumps(document), inner)

    def heartbeat_handle(self) -> Heartbeats | None:
        return copy.copy(self)

    def history(self) -> Sequence[AuditEntry]:
        _, (_, history) = self.read()
        return [AuditEntry.from_json(json.dumps(entry)) for entry in history]
