"""Whether each task of a plan has the rows of exactly one range: then it can commit them by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Operators that keep a row in the task that read it, and the task's number. Any other one (an exchange, a coalesce, a
# union, a cache, one not known yet) makes a plan wide: nothing is guessed, an unknown operator costs speed only.
_IN_PLACE = {
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
    """Whether nothing in the plan moves a row to another task."""
    return _in_place(_operators(_plan(rows)))


def tasks_match_ranges(rows: DataFrame, ranges: int) -> bool:
    """Whether task number n has the rows of range number n, all of them and no others."""
    plan = _plan(rows)
    operators = _operators(plan)
    return _in_place(operators) and int(plan.execute().getNumPartitions()) == ranges and _reads_kafka(operators[-1][1])


def preserves_row_order(rows: DataFrame) -> bool:
    """Whether a plan in which no row moves hands them on as they were read: no function has them all at hand."""
    return not any("MapIn" in name or "MapPartitions" in name for name, _ in _operators(_plan(rows)))


def _plan(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().executedPlan()


def _operators(plan: Any) -> list[tuple[str, Any]]:
    """All of a plan, each with its name; in one without branches the last is where the rows come from."""
    children = plan.children()
    below = [found for number in range(children.size()) for found in _operators(children.apply(number))]
    return [(plan.getClass().getSimpleName(), plan), *below]


def _in_place(operators: list[tuple[str, Any]]) -> bool:
    return all(name in _IN_PLACE for name, _ in operators)


def _reads_kafka(leaf: Any) -> bool:
    """Whether its rows come out of Kafka as they are: an RDD that a transform made itself may have moved them."""
    if leaf.getClass().getSimpleName() != "RDDScanExec":
        return False
    parents = leaf.rdd().dependencies()
    return bool(parents.size()) and parents.apply(0).rdd().getClass().getSimpleName() == "KafkaSourceRDD"
