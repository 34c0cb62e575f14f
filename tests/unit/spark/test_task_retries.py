"""At-most-once: which sessions of Spark may repeat a task."""

import pytest

from headrace.spark.task_retries import OFF, is_local, retry_settings

CLUSTER = {**OFF, "spark.master": "spark://host:7077"}


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,1]", "local[*, 1]"])
def test_one_jvm_runs_a_task_once_whatever_the_setting_for_clusters_says(master):
    assert retry_settings({**OFF, "spark.master": master, "spark.task.maxFailures": "4"}) == []
    assert is_local(master)


@pytest.mark.parametrize("master", ["local[2,4]", "local[*, 2]"])
def test_one_jvm_takes_the_failures_from_the_masters_name(master):
    assert retry_settings({**OFF, "spark.master": master}) == [f"spark.master={master}"]
    assert is_local(master)


def test_a_local_cluster_goes_by_the_setting():
    assert not is_local("local-cluster[2,1,1024]")
    assert retry_settings({**CLUSTER, "spark.master": "local-cluster[2,1,1024]"}) == []
    assert retry_settings({"spark.master": "local-cluster[2,1,1024]"})[0] == "spark.task.maxFailures=4"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.task.maxFailures", "2"),
        ("spark.stage.maxConsecutiveAttempts", "4"),
        ("spark.stage.ignoreDecommissionFetchFailure", "true"),
        ("spark.decommission.enabled", "TRUE"),
        ("spark.speculation", "true"),
    ],
)
def test_each_way_to_repeat_a_task_is_found(name, value):
    assert retry_settings(CLUSTER) == []
    assert retry_settings({**CLUSTER, name: value}) == [f"{name}={value}"]


def test_what_is_not_set_is_as_spark_has_it():
    left_out = {"spark.master": "yarn"}
    assert retry_settings(left_out) == [
        "spark.task.maxFailures=4",
        "spark.stage.maxConsecutiveAttempts=4",
        "spark.stage.ignoreDecommissionFetchFailure=true",
    ]
    assert retry_settings({"spark.master": "local[2]"}) == [
        "spark.stage.maxConsecutiveAttempts=4",
        "spark.stage.ignoreDecommissionFetchFailure=true",
    ]
