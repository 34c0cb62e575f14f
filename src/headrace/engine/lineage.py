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
    walk = _Walk(deterministic=plan.deterministic() and not any(f'.{clock}"' in text for clock in _CLOCKS))
    walk.visit(plan)
    lineage = Lineage(rows=list(dict.fromkeys(walk.rows)), per_batch=list(dict.fromkeys(walk.per_batch)))
    for attribute in _items(plan.output()) if walk.volatile else ():
        if (reason := walk.volatile.get(attribute.exprId().id())) is not None:
            lineage.columns[attribute.name()] = reason
    return lineage


class _Walk:
    """Walks a plan from its leaves up and collects the volatile attributes, each with the reason."""

    def __init__(self, *, deterministic: bool) -> None:
        self._deterministic = deterministic
        self.volatile: dict[int, str] = {}
        self.rows: list[str] = []
        self.per_batch: list[str] = []

    def visit(self, plan: Any) -> set[int]:
        """The sources below `plan`."""
        sources_below = [self.visit(child) for child in _items(plan.children())]
        kind = plan.getClass().getSimpleName()
        if kind in ("Union", "Intersect", "Except"):
            self._propagate_by_position(plan)
        if "Map" in kind:  # a user function gets whole rows: mapInArrow, applyInPandas
            self._propagate_to_all(plan)
        for expression in () if self._deterministic else _items(plan.expressions()):
            self._mark_volatile(plan, kind, expression)
        if kind in _ROW_CHOICES:
            self.rows.append(_ROW_CHOICES[kind])
        sources = set().union(*sources_below) if sources_below else _sources(plan)
        if sources and kind in _PER_BATCH:
            self.per_batch.append(_PER_BATCH[kind])
        if kind == "Join" and len(sources_below) == 2 and all(sources_below):
            left, right = sources_below
            self.per_batch.append("a join of two sources" if left != right else "a join of a source with itself")
        return sources

    def _mark_volatile(self, plan: Any, kind: str, expression: Any) -> None:
        reason = self._reason(expression)
        if reason is None:
            return
        if kind in ("Filter", "Join"):
            self.rows.append(reason)
        elif kind == "Generate":
            for attribute in _items(plan.generatorOutput()):
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
        inner = list(_items(expression.children()))
        for child in inner:
            if (reason := self._reason(child)) is not None:
                return reason
        # Deterministic children: the expression itself is volatile. Others: a child only looks volatile.
        if expression.deterministic() or not all(child.deterministic() for child in inner):
            return None
        return _display_name(expression)

    def _propagate_to_all(self, plan: Any) -> None:
        inputs = (attribute for child in _items(plan.children()) for attribute in _items(child.output()))
        reason = next(
            (known for attribute in inputs if (known := self.volatile.get(attribute.exprId().id())) is not None), None
        )
        if reason is not None:
            self.volatile.update({attribute.exprId().id(): reason for attribute in _items(plan.output())})

    def _propagate_by_position(self, plan: Any) -> None:
        outputs = list(_items(plan.output()))
        for child in _items(plan.children()):
            for output, attribute in zip(outputs, _items(child.output()), strict=False):
                if (reason := self.volatile.get(attribute.exprId().id())) is not None:
                    self.volatile[output.exprId().id()] = reason


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
    names = {attribute.name() for attribute in _items(leaf.output())}
    return {int(leaf.rdd().id())} if METADATA in names else set()


def _items(seq: Any) -> Iterator[Any]:
    return (seq.apply(index) for index in range(seq.size()))
