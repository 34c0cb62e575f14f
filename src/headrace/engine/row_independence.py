"""Checks in the analysed plan whether a transform makes the rows of each record independently of other records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

_BY_RECORD = {
    "CTERelationDef",
    "CollectMetrics",
    "Filter",
    "Generate",
    "Project",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sort",
    "SubqueryAlias",
    "Union",
    "View",
    "WithCTE",
}
"""Operators that work on one row at a time, or only move rows. Any other one counts as a step over several."""
_LEFT = {"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"}
_RIGHT = {"Inner", "Cross", "RightOuter"}


def step_over_several_records(rows: DataFrame, records: Sequence[DataFrame]) -> str | None:
    """The first step of the plan that needs several of `records` at once; None if there is none.

    A join with a table that does not come from `records` is a lookup per record.
    """
    ours = {_key(leaf) for frame in records for leaf in _leaves(_analysed(frame))}
    return _step(_analysed(rows), ours)


def _step(node: Any, ours: set[object]) -> str | None:
    name = _name(node)
    if not _reads(node, ours):
        return None  # a lookup table
    below = _children(node)
    if any(_reads(plan, ours) for plan in _items(node.subqueries())):
        return "a subquery over the records"
    if name == "Join":
        left, right = (_reads(side, ours) for side in below)
        kind = str(node.joinType().toString())
        if (left and right) or kind not in (_LEFT if left else _RIGHT):
            return f"Join {kind}"
    elif below and name not in _BY_RECORD:
        return name
    return next((step for child in below if (step := _step(child, ours)) is not None), None)


def _reads(node: Any, ours: set[object]) -> bool:
    """Whether the plan below may read records."""
    return any(_key(leaf) in ours or _name(leaf) == "CTERelationRef" for leaf in _leaves(node)) or any(
        _reads(plan, ours) for plan in _items(node.subqueriesAll())
    )


def _key(leaf: Any) -> object:
    """Identifies a leaf: by its RDD, else only by its class, so all leaves of this class count as records."""
    name = _name(leaf)
    return (name, int(leaf.rdd().id())) if name == "LogicalRDD" else name


def _analysed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _leaves(node: Any) -> list[Any]:
    below = _children(node)
    return [leaf for child in below for leaf in _leaves(child)] if below else [node]


def _children(node: Any) -> list[Any]:
    return _items(node.children())


def _items(found: Any) -> list[Any]:
    return [found.apply(number) for number in range(found.size())]


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())
