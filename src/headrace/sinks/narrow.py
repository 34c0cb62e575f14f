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


def keeps_partitions(rows: DataFrame) -> bool:
    """Whether nothing in the plan moves a row to another task."""
    return _in_place(rows._jdf.queryExecution().executedPlan())


def one_task_per_range(rows: DataFrame, ranges: int) -> bool:
    """Whether task number n has the rows of range number n, all of them and no others."""
    plan: Any = rows._jdf.queryExecution().executedPlan()
    return _in_place(plan) and int(plan.execute().getNumPartitions()) == ranges and _reads_kafka(plan)


def _reads_kafka(plan: Any) -> bool:
    """Whether its rows come out of Kafka as they are: an RDD that a transform made itself may have moved them."""
    while plan.children().size():
        plan = plan.children().apply(0)
    if plan.getClass().getSimpleName() != "RDDScanExec":
        return False
    parents = plan.rdd().dependencies()
    return bool(parents.size()) and parents.apply(0).rdd().getClass().getSimpleName() == "KafkaSourceRDD"


def _in_place(plan: Any) -> bool:
    if plan.getClass().getSimpleName() not in _IN_PLACE:
        return False
    children = plan.children()
    return all(_in_place(children.apply(number)) for number in range(children.size()))
