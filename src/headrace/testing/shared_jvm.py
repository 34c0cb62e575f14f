"""Shares one JVM between many short-lived drivers, so that a crash suite need not start Spark for every kill."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def gateway_environment(spark: SparkSession) -> dict[str, str]:
    """Environment variables with which another process connects to the JVM of `spark`."""
    parameters: Any = cast("Any", spark.sparkContext._gateway).gateway_parameters
    return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}


def attached_session() -> SparkSession | None:
    """The session of the JVM that the environment names; None if it names none."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.sql import SparkSession

    start: Any = java_gateway.launch_gateway
    gateway = start()
    jvm: Any = gateway.jvm
    java_context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    conf = SparkConf(_jconf=java_context.getConf())
    context = SparkContext(jsc=java_context, gateway=gateway, conf=conf)
    return SparkSession(context)
