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
from headrace.support.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.types import Batch, Progress, TopicPartition

_SWAPS = RetryPolicy(attempts=20)


class Heartbeats(Protocol):
    """The part of a store that the heartbeat thread uses."""

    def open(self, pipeline: str) -> object: ...

    def close(self) -> None: ...

    def heartbeat(self, run: RunLease) -> bool: ...


class OffsetStore(Resource, ABC):
    """Stores the offsets of one pipeline. Every method is atomic: it takes effect completely or not at all.

    A run calls, in this order: `open` once; `load` once and again after every failure; then per batch `begin` and
    `commit`, as its guarantee requires. A run never repeats a call whose outcome is unknown without a `load` in
    between, so no method has to recognise a repeated call.

    An adapter implements `read`, `swap` and `history`. Which change may follow which state is decided here, once for
    all systems. An adapter raises RetriableError while its system does not answer.
    `headrace.testing` ships the test suite of this contract.
    """

    _lease: RunLease | None = None
    """The run that registered through this handle. Once another run has registered, this handle changes nothing."""

    @abstractmethod
    def read(self) -> tuple[State, Any]:
        """The stored state of the opened pipeline, never older than the last swap by any process, and its version.

        A pipeline that was never stored has an empty State.
        """

    @abstractmethod
    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        """Replace `old`, read with `version`, with `new`, and append `change` to the audit log; durable on return.

        False, with nothing changed, if another process changed the state since that read.
        """

    @abstractmethod
    def history(self) -> Sequence[AuditEntry]:
        """The audit log, oldest first."""

    def open_for_reading(self, pipeline: str) -> str | None:
        """Open for `read` and `history` only, without creating anything: no file, table or topic.

        Returns what is missing if there is nothing to read; the store is not open then. A store whose `open` creates
        nothing does not override this.
        """
        self.open(pipeline)
        return None

    def consumer_group(self, pipeline: str) -> str | None:
        """The Kafka consumer group that holds the offsets, if any: nothing else may commit to it."""
        return None

    def durability_warnings(self, pipeline: str) -> list[str]:
        """Warnings about settings of the system with which it may lose offsets. Needs no `open`, changes nothing."""
        return []

    def load(self) -> Progress:
        """The committed offsets, the pending batch if any, the topic ids and the id of the last batch."""
        return self.read()[0].progress

    def begin(self, batch: Batch) -> None:
        """Journal the exact ranges of `batch` as pending, before anything is written.

        A compare-and-set: OffsetConflict if a range does not start at its committed offset, if another batch is pending
        (other ranges, another id or other topic ids), or if another run has registered since this handle did. A
        partition without a committed offset accepts any start.
        """
        self._change(lambda state: state.check_lease(self._lease).check_epoch(batch).begun(batch))

    def commit(self, batch: Batch) -> None:
        """Move the offset of every range from its start to its end, and clear the pending batch.

        A compare-and-set over all ranges together: OffsetConflict if a committed offset is not the start of its range,
        if another batch is pending, or if another run has registered since this handle did. Also called without
        `begin`: under at-most-once, and with empty ranges to store the start position of a new partition.
        """
        self._change(lambda state: state.check_lease(self._lease).check_epoch(batch).committed(batch))

    def set_offsets(
        self,
        expected: Progress,
        offsets: Mapping[TopicPartition, int],
        change: AuditEntry,
        topic_ids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Set offsets, forward or back, and drop the pending batch; OffsetConflict if progress is not `expected`."""
        numbered = replace(change, last_batch=expected.newest)
        self._change(lambda state: state.check_lease(self._lease).moved(expected, offsets, topic_ids), numbered)

    def import_progress(self, progress: Progress, change: AuditEntry) -> None:
        """Store the progress of another store, with its pending batch; OffsetConflict if this one has progress."""
        self._change(lambda state: state.imported(progress), change)

    def set_lease(self, run: RunLease | None, check: Callable[[RunLease | None], None] = lambda lease: None) -> None:
        """Register `run` as the active run of this pipeline, or remove the registration (None).

        `check` receives the stored lease and raises if it must stay: compared and set in one step.
        """

        def leased(state: State) -> State:
            check(state.run)
            return replace(state, run=run)

        self._change(leased)
        self._lease = run

    def lease(self) -> RunLease | None:
        """The run that registered last, with its newest heartbeat."""
        return self.read()[0].run

    def heartbeat(self, run: RunLease) -> bool:
        """Renew the heartbeat of `run`; False, with nothing changed, if another run holds the lease."""
        own = False

        def renewed(state: State) -> State:
            nonlocal own
            own = run.is_same_run(state.run)
            return replace(state, run=run) if own else state

        self._change(renewed)
        return own

    def heartbeat_handle(self) -> Heartbeats | None:
        """A second handle, not open yet, for the thread that sends the heartbeats of a run during its batches.

        None: the run sends its heartbeats between two batches.
        """
        return None

    def append_audit(self, change: AuditEntry) -> None:
        """Append to the audit log without changing offsets."""
        self._change(lambda state: state, change)

    def _change(self, decide: Callable[[State], State], change: AuditEntry | None = None) -> None:
        for _ in _SWAPS.tries():
            old, version = self.read()
            new = decide(old)
            if (new == old and change is None) or self.swap(version, old, new, change):
                return
        raise RetriableError(f"{self!r}: another process changed the state during each of {_SWAPS.attempts} attempts")


class DocumentStore(OffsetStore):
    """A store in any system that can replace one text if it is unchanged since it was read.

    An adapter implements `get` and `put`: see docs/write-a-store.md.
    """

    format: Final = 1
    """The format version of the document; see `format_version`."""
    max_audit_entries = 200
    """Maximum entries of the audit log in the document."""

    @abstractmethod
    def get(self) -> tuple[str | None, Any]:
        """The text of the pipeline, or None if there is none, and its version."""

    @abstractmethod
    def put(self, text: str, version: Any) -> bool:
        """Replace the text read with `version`; False, with nothing changed, if another process replaced it first."""

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
            history = [*history, json.loads(change.to_json())][-self.max_audit_entries :]
        document = {format_version.KEY: self.format, "state": json.loads(new.to_json()), "history": history}
        return self.put(json.dumps(document), inner)

    def heartbeat_handle(self) -> Heartbeats | None:
        return copy.copy(self)

    def history(self) -> Sequence[AuditEntry]:
        _, (_, history) = self.read()
        return [AuditEntry.from_json(json.dumps(entry)) for entry in history]
