"""What of a transform's result differs when a batch is repeated, and what sees one batch only: read off its plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.sink import METADATA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

# Spark takes these for deterministic, for they are one value within a query. A repeated batch is another query.
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
    """`columns`: by name, the expression whose value a repeated batch gives anew. `rows`: what chooses other rows then.
    `per_batch`: operations that see the rows of one batch and no others."""

    columns: dict[str, str] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    per_batch: list[str] = field(default_factory=list)


def trace(result: DataFrame) -> Lineage:
    """Follow the columns of `result`, which a transform made of the frames of its sources, empty ones or a batch."""
    plan: Any = result._jdf.queryExecution().analyzed()
    # Every expression costs calls into the JVM, and most transforms have nothing to find.
    text = plan.toJSON()
    walk = _Walk(steady=plan.deterministic() and not any(f'.{clock}"' in text for clock in _CLOCKS))
    walk.visit(plan)
    found = Lineage(rows=list(dict.fromkeys(walk.rows)), per_batch=list(dict.fromkeys(walk.per_batch)))
    for attribute in _each(plan.output()) if walk.volatile else ():
        if (reason := walk.volatile.get(attribute.exprId().id())) is not None:
            found.columns[attribute.name()] = reason
    return found


class _Walk:
    """From the leaves up: which attributes are volatile, and why."""

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
        if "Map" in kind:  # a function of the user's gets whole rows: mapInArrow, applyInPandas
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
        """The innermost expression that gives another value next time; None if there is none."""
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
        # With steady parts it is not steady by itself, or a part of it only looks as if it were not.
        if expression.deterministic() or not all(child.deterministic() for child in inner):
            return None
        return _shown(expression)

    def _pass_to_all(self, plan: Any) -> None:
        below = (attribute for child in _each(plan.children()) for attribute in _each(child.output()))
        reason = next((found for one in below if (found := self.volatile.get(one.exprId().id())) is not None), None)
        if reason is not None:
            self.volatile.update({attribute.exprId().id(): reason for attribute in _each(plan.output())})

    def _pass_by_position(self, plan: Any) -> None:
        own = list(_each(plan.output()))
        for child in _each(plan.children()):
            for attribute, below in zip(own, _each(child.output()), strict=False):
                if (reason := self.volatile.get(below.exprId().id())) is not None:
                    self.volatile[attribute.exprId().id()] = reason


def _is_never_true(condition: Any) -> bool:
    """Whether it is `spark_partition_id() < 0`, with which the decoder keeps the optimiser out."""
    if condition.getClass().getSimpleName() != "LessThan":
        return False
    return bool(
        condition.left().getClass().getSimpleName() == "SparkPartitionID" and condition.right().toString() == "0"
    )


def _shown(expression: Any) -> str:
    name = str(expression.prettyName())
    if name == "pythonudf":
        return f"{expression.name()}(), which is marked as nondeterministic"
    return f"{name}()"


def _sources(leaf: Any) -> set[int]:
    """The RDD that a leaf reads, if its rows are those of a source: a join of one with itself has it twice."""
    if leaf.getClass().getSimpleName() != "LogicalRDD":
        return set()
    names = {attribute.name() for attribute in _each(leaf.output())}
    return {int(leaf.rdd().id())} if METADATA in names else set()


def _each(items: Any) -> Iterator[Any]:
    return (items.apply(number) for number in range(items.size()))
