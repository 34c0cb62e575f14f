"""How a session of ours is started: Spark itself is not."""

from contextlib import contextmanager

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.errors import ConfigError
from headrace.jars import cache
from headrace.spark import gateway, session

JAVA = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'
\tat org.apache.spark.SparkContext$.org$apache$spark$SparkContext$$createTaskScheduler(SparkContext.scala:3385)
"""


@pytest.mark.parametrize("kind", [Py4JError, PySparkException])
def test_a_spark_that_refuses_to_start_says_why_while_its_jvm_lives(monkeypatch, kind):
    living = []

    class Refusal(kind):
        def __str__(self):
            if not living:
                raise ConnectionRefusedError(111, "Connection refused")
            return JAVA

    @contextmanager
    def jvm(settings):
        living.append("JVM")
        try:
            yield
        finally:
            living.clear()

    def refuse(builder):
        raise Refusal("it refuses")

    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    monkeypatch.setattr(gateway, "own_jvm", jvm)
    monkeypatch.setattr(cache, "connector", lambda progress=None: [])
    monkeypatch.setattr(session, "active", lambda: None)  # another test may have started one in this process
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    with pytest.raises(ConfigError) as refused:
        session.create({"spark.master": "local[x]"})
    assert refused.value.message == "Spark did not start: SparkException: Could not parse Master URL: 'local[x]'"
    assert refused.value.exit_code == 2
    assert "--spark" in refused.value.hint
