"""Checks in the physical plan whether each task has the rows of exactly one range, and so can commit them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Operators that keep each row in the task that read it, and the number of the task. Any other one (an exchange, a
# coalesce, a union, a cache, an unknown operator) makes a plan wide, which costs speed only.
_NARROW = {
    "ArrowEvalPythonExec",
    "ArrowEvalPythonUDTFExec",
    "BatchEvalPythonExec",
    "BatchEvalPythonUDTFExec",
    "CollectMetricsExec",
    "ColumnarToRowExec",
    "DeserializeToObjectExec",
    "ExpandExec",
    "FilterExec",
    "GenerateExec",
    "InputAdapter",
    "MapElementsExec",
    "MapInArrowExec",
    "MapInPandasExec",
    "MapPartitionsExec",
    "ProjectExec",
    "RDDScanExec",
    "SerializeFromObjectExec",
    "WholeStageCodegenExec",
}


def plan_is_narrow(rows: DataFrame) -> bool:
    """Whether no operator moves rows to another task."""
    return _are_narrow(_operators(_plan(rows)))


def tasks_match_ranges(rows: DataFrame, ranges: int) -> bool:
    """Whether task n has exactly the rows of range n."""
    plan = _plan(rows)
    operators = _operators(plan)
    return (
        _are_narrow(operators) and int(plan.execute().getNumPartitions()) == ranges and _reads_kafka(operators[-1][1])
    )


def preserves_row_order(rows: DataFrame) -> bool:
    """Whether a narrow plan keeps the order of the rows: no function gets several rows at once."""
    return not any("MapIn" in name or "MapPartitions" in name for name, _ in _operators(_plan(rows)))


def _plan(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().executedPlan()


def _operators(plan: Any) -> list[tuple[str, Any]]:
    """All operators with their names; in a plan without branches the last one reads the rows."""
    children = plan.children()
    below = [operator for number in range(children.size()) for operator in _operators(children.apply(number))]
    return [(plan.getClass().getSimpleName(), plan), *below]


def _are_narrow(operators: list[tuple[str, Any]]) -> bool:
    return all(name in _NARROW for name, _ in operators)


def _reads_kafka(leaf: Any) -> bool:
    """Whether it reads Kafka directly: an RDD that the transform created may have moved rows."""
    if leaf.getClass().getSimpleName() != "RDDScanExec":
        return False
    parents = leaf.rdd().dependencies()
    return bool(parents.size()) and parents.apply(0).rdd().getClass().getSimpleName() == "KafkaSourceRDD"
