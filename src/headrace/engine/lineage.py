"""Finds columns and rows in the plan of a transform that differ when a batch is repeated, and per-batch operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.sink import METADATA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

# To Spark these are deterministic, because their value is constant in a query. A repeated batch is another query.
_CLOCKS = {
    "CurrentDate": "current_date()",
    "CurrentTime": "current_time()",
    "CurrentTimestamp": "current_timestamp()",
    "LocalTimestamp": "localtimestamp()",
    "Now": "now()",
}
_PER_BATCH = {
    "Aggregate": "groupBy, agg or distinct",
    "Distinct": "distinct",
    "Window": "a window function",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
    "Offset": "offset",
    "Tail": "tail",
}
_ROW_CHOICES = {"GlobalLimit": "limit", "LocalLimit": "limit", "Sample": "sample()", "Tail": "tail", "Offset": "offset"}


@dataclass(slots=True)
class Lineage:
    """What a repeated batch may change. `columns`: by name, the expression whose value changes. `rows`: operations that
    select other rows. `per_batch`: operations that see only the rows of one batch."""

    columns: dict[str, str] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    per_batch: list[str] = field(default_factory=list)


def trace(result: DataFrame) -> Lineage:
    """Trace the columns of `result`, the result of a transform on the frames of a batch or on empty ones."""
    plan: Any = result._jdf.queryExecution().analyzed()
    # Each expression costs calls into the JVM, and most transforms have no volatile one.
    text = plan.toJSON()
    walk = _Walk(steady=plan.deterministic() and not any(f'.{clock}"' in text for clock in _CLOCKS))
    walk.visit(plan)
    found = Lineage(rows=list(dict.fromkeys(walk.rows)), per_batch=list(dict.fromkeys(walk.per_batch)))
    for attribute in _each(plan.output()) if walk.volatile else ():
        if (reason := walk.volatile.get(attribute.exprId().id())) is not None:
            found.columns[attribute.name()] = reason
    return found


class _Walk:
    """Walks a plan from its leaves up and collects the volatile attributes, each with the reason."""

    def __init__(self, *, steady: bool) -> None:
        self._steady = steady
        self.volatile: dict[int, str] = {}
        self.rows: list[str] = []
        self.per_batch: list[str] = []

    def visit(self, plan: Any) -> set[int]:
        """The sources below `plan`."""
        below = [self.visit(child) for child in _each(plan.children())]
        kind = plan.getClass().getSimpleName()
        if kind in ("Union", "Intersect", "Except"):
            self._pass_by_position(plan)
        if "Map" in kind:  # a user function gets whole rows: mapInArrow, applyInPandas
            self._pass_to_all(plan)
        for expression in () if self._steady else _each(plan.expressions()):
            self._define(plan, kind, expression)
        if kind in _ROW_CHOICES:
            self.rows.append(_ROW_CHOICES[kind])
        read = set().union(*below) if below else _sources(plan)
        if read and kind in _PER_BATCH:
            self.per_batch.append(_PER_BATCH[kind])
        if kind == "Join" and len(below) == 2 and all(below):
            self.per_batch.append("a join of two sources" if below[0] != below[1] else "a join of a source with itself")
        return read

    def _define(self, plan: Any, kind: str, expression: Any) -> None:
        reason = self._reason(expression)
        if reason is None:
            return
        if kind in ("Filter", "Join"):
            self.rows.append(reason)
        elif kind == "Generate":
            for attribute in _each(plan.generatorOutput()):
                self.volatile[attribute.exprId().id()] = reason
        elif expression.getClass().getSimpleName() == "Alias":
            self.volatile[expression.exprId().id()] = reason

    def _reason(self, expression: Any) -> str | None:
        """The innermost volatile expression; None if there is none."""
        kind = expression.getClass().getSimpleName()
        if kind == "AttributeReference":
            return self.volatile.get(expression.exprId().id())
        if kind in _CLOCKS:
            return _CLOCKS[kind]
        if kind == "If" and _is_never_true(expression.predicate()):
            return self._reason(expression.falseValue())
        inner = list(_each(expression.children()))
        for child in inner:
            if (reason := self._reason(child)) is not None:
                return reason
        # Deterministic children: the expression itself is volatile. Others: a child only looks volatile.
        if expression.deterministic() or not all(child.deterministic() for child in inner):
            return None
        return _display_name(expression)

    def _pass_to_all(self, plan: Any) -> None:
        below = (attribute for child in _each(plan.children()) for attribute in _each(child.output()))
        reason = next(
            (found for attribute in below if (found := self.volatile.get(attribute.exprId().id())) is not None), None
        )
        if reason is not None:
            self.volatile.update({attribute.exprId().id(): reason for attribute in _each(plan.output())})

    def _pass_by_position(self, plan: Any) -> None:
        own = list(_each(plan.output()))
        for child in _each(plan.children()):
            for attribute, below in zip(own, _each(child.output()), strict=False):
                if (reason := self.volatile.get(below.exprId().id())) is not None:
                    self.volatile[attribute.exprId().id()] = reason


def _is_never_true(condition: Any) -> bool:
    """Whether it is `spark_partition_id() < 0`, with which the decoder stops predicate pushdown."""
    if condition.getClass().getSimpleName() != "LessThan":
        return False
    return bool(
        condition.left().getClass().getSimpleName() == "SparkPartitionID" and condition.right().toString() == "0"
    )


def _display_name(expression: Any) -> str:
    name = str(expression.prettyName())
    if name == "pythonudf":
        return f"{expression.name()}(), which is marked as nondeterministic"
    return f"{name}()"


def _sources(leaf: Any) -> set[int]:
    """The id of the RDD that a leaf reads, if it is a source. A self-join has the same id twice."""
    if leaf.getClass().getSimpleName() != "LogicalRDD":
        return set()
    names = {attribute.name() for attribute in _each(leaf.output())}
    return {int(leaf.rdd().id())} if METADATA in names else set()


def _each(items: Any) -> Iterator[Any]:
    return (items.apply(number) for number in range(items.size()))
