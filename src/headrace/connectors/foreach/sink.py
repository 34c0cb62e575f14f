"""Calls a function of the user for each row, on the executors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from headrace.connectors.foreach.effect_guard import EffectGuard, Mark
from headrace.connectors.foreach.task import Task, UserFunctions, shaper
from headrace.connectors.shared import log_order
from headrace.connectors.shared.task_sink import TaskSink
from headrace.core.effect_marks import EffectStore
from headrace.core.offset_store import OffsetStore
from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.spark import tasks
from headrace.support.crashpoints import reach
from headrace.support.redaction import masked
from headrace.support.validation import check_choice, check_positive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.core.effect_marks import EffectLog
    from headrace.spark.tasks import Report
    from headrace.types import Batch

Per = Literal["row", "partition"]
_WEEK = 7 * 24 * 3600.0
_DELETE_EXPIRED_SECONDS = 3600.0


class Foreach(TaskSink):
    """Calls `fn(row)` for each row, a dict of its columns including `_kafka`. With `per="partition"` it calls
    `fn(rows)` once per task, with an iterator of such dicts.

    `open()` is called once per task; its result is the second argument of `fn`. `close(it)` is always called at the
    end, also after an error. `once` is a store that remembers for `keep` seconds which messages are done, so that a
    repeated batch skips them. It identifies a message by the record of its row, or by the columns `key`. `mark` says
    whether the mark is set "after" the effect (a crash in between repeats the effect) or "before" it (a crash in
    between loses the effect).
    """

    no_exactly_once_reason = (
        "a crash between an effect and its mark repeats the effect (mark='after') or loses it (mark='before'),"
        " and no order of the two avoids both"
    )

    def __init__(
        self,
        fn: Callable[..., object],
        *,
        open: Callable[[], Any] | None = None,  # noqa: A002
        close: Callable[[Any], object] | None = None,
        per: Per = "row",
        once: EffectStore | None = None,
        mark: Mark = "after",
        key: str | Sequence[str] | None = None,
        keep: float = _WEEK,
    ) -> None:
        for name, given in (("fn", fn), ("open", open), ("close", close)):
            if not (callable(given) or (given is None and name != "fn")):
                raise ConfigError(
                    f"Foreach: expected a function as {name}=, got {masked(repr(given))}", hint="sinks.Foreach(send)"
                )
        if close is not None and open is None:
            raise ConfigError("Foreach: close= needs open=, which returns what to close", hint="open=connect")
        check_choice("Foreach: per", per, get_args(Per), hint='per="row", or per="partition"')
        check_choice("Foreach: mark", mark, get_args(Mark), hint='mark="after", or mark="before"')
        if once is not None and not isinstance(once, EffectStore):
            raise ConfigError(
                f"Foreach: expected a store of marks as once=, got {masked(repr(once))}",
                hint="stores.Redis(…), stores.Postgres(…); on one machine stores.SQLite(…)",
            )
        if once is not None and per == "partition":
            raise ConfigError(
                'Foreach: once= needs per="row": with per="partition" single rows cannot be tracked', hint='per="row"'
            )
        if once is None and (key is not None or mark != "after" or keep != _WEEK):
            raise ConfigError("Foreach: key=, mark= and keep= need once=", hint="once=stores.Redis(…)")
        check_positive("Foreach: keep", keep, unit="seconds", hint="keep=7 * 24 * 3600")
        self._fn, self._open, self._close, self._per = fn, open, close, per
        self._once, self._mark, self._keep = once, mark, keep
        self._key = (key,) if isinstance(key, str) else tuple(key or ())
        self._marks: EffectLog | None = None
        self._expired_deleted = 0.0

    @property
    def identity(self) -> str:
        name = getattr(self._fn, "__qualname__", type(self._fn).__name__)
        once = f", once={self._once.identity}, mark={self._mark!r}" if self._once is not None else ""
        return f"sinks.Foreach({getattr(self._fn, '__module__', '?')}.{name}{once})"

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._key

    def open(self, pipeline: str) -> Self:
        self._check_picklable()
        if self._once is not None:
            self._marks = self._once.marks(pipeline, self._keep)
            self._delete_expired_marks(self._marks)
        return super().open(pipeline)

    def prepare(self, schema: StructType) -> None:
        if missing := [name for name in self._key if name not in schema.names]:
            raise ConfigError(f"{self!r}: the rows have no column {missing[0]}", hint=f"rows: {schema.names}")
        if self._once is not None and not self._key and METADATA not in schema.names:
            raise log_order.origin_required_error()

    def check_reachable(self) -> None:
        store: object = self._once
        if isinstance(store, OffsetStore):
            with store:
                store.open_for_reading("headrace-check")

    def check_target(self, schema: StructType) -> None:
        self._check_picklable()
        self.prepare(schema)

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str | None:
        if self._once is None:
            return "a repeated batch repeats all its effects"
        identified_by = ", ".join(self._key) or "record"
        other = "repeats" if self._mark == "after" else "loses"
        return f"each effect once by its {identified_by}; a crash {other} the effect in flight of each task"

    def _write_rows(self, batch: Batch, rows: DataFrame, limit: int | None) -> list[Report]:
        self.ensure_prepared(rows.schema)
        once = self._guard(batch, rows)
        by_record = once is not None and not once.key
        frame = log_order.sort_by_offset(batch, rows) if by_record else log_order.with_origin_columns(rows)
        calls = UserFunctions(self._fn, self._open, self._close)
        reports = tasks.run(frame, Task(calls, self._per, once, shaper(rows.schema), repr(self), limit))
        reach("foreach: effects done")
        return reports

    def _guard(self, batch: Batch, rows: DataFrame) -> EffectGuard | None:
        if self._once is None:
            return None
        marks = self.require_open(self._marks)
        if marks.is_local and not str(rows.sparkSession.sparkContext.master).startswith("local"):
            raise ConfigError(
                f"{self!r}: a file of this machine cannot be reached from executors on others",
                hint="once=stores.Redis(…), or stores.Postgres(…)",
            )
        if time.monotonic() - self._expired_deleted > _DELETE_EXPIRED_SECONDS:
            self._delete_expired_marks(marks)
        numbered = not self._key and log_order.stays_in_task(batch, rows)
        return EffectGuard(marks, self._mark, self._key, dict(batch.topic_ids), numbered)

    def _check_picklable(self) -> None:
        from pyspark import cloudpickle

        pickled: Any = cloudpickle.dumps  # cloudpickle has no type hints
        try:
            pickled((self._fn, self._open, self._close))
        except Exception as error:  # pickling a user's object may raise anything
            raise ConfigError(
                f"{self!r} cannot be sent to the executors: {error}",
                hint="a connection, lock or file cannot be pickled: open it in open=…",
            ) from error

    def _delete_expired_marks(self, marks: EffectLog) -> None:
        marks.prepare()
        self._expired_deleted = time.monotonic()
