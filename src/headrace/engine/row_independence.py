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
    record_leaves = {_leaf_id(leaf) for frame in records for leaf in _leaves(_analysed(frame))}
    return _step(_analysed(rows), record_leaves)


def _step(node: Any, record_leaves: set[object]) -> str | None:
    name = _name(node)
    if not _reads(node, record_leaves):
        return None  # a lookup table
    children = _children(node)
    if any(_reads(plan, record_leaves) for plan in _items(node.subqueries())):
        return "a subquery over the records"
    if name == "Join":
        left, right = (_reads(side, record_leaves) for side in children)
        kind = str(node.joinType().toString())
        if (left and right) or kind not in (_LEFT if left else _RIGHT):
            return f"Join {kind}"
    elif children and name not in _BY_RECORD:
        return name
    return next((step for child in children if (step := _step(child, record_leaves)) is not None), None)


def _reads(node: Any, record_leaves: set[object]) -> bool:
    """Whether the plan below may read records."""
    return any(_leaf_id(leaf) in record_leaves or _name(leaf) == "CTERelationRef" for leaf in _leaves(node)) or any(
        _reads(plan, record_leaves) for plan in _items(node.subqueriesAll())
    )


def _leaf_id(leaf: Any) -> object:
    """Identifies a leaf: by its RDD, else only by its class, so all leaves of this class count as records."""
    name = _name(leaf)
    return (name, int(leaf.rdd().id())) if name == "LogicalRDD" else name


def _analysed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _leaves(node: Any) -> list[Any]:
    children = _children(node)
    return [leaf for child in children for leaf in _leaves(child)] if children else [node]


def _children(node: Any) -> list[Any]:
    return _items(node.children())


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())
