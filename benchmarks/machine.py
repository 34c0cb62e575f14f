"""What the numbers were taken on: the machine, how busy it was, and the versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import headrace as hr
from headrace.dev.kafka import KAFKA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def description() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "memory GB": round(psutil.virtual_memory().total / 2**30),
        "load before": round(os.getloadavg()[0], 1),
    }


def busy() -> str | None:
    """A warning, if others are at work here: numbers taken beside other work say little."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"this machine is busy: load {load:.1f} on {cores} cores" if load > cores / 2 else None


def versions(spark: SparkSession) -> dict[str, str]:
    jvm: Any = spark.sparkContext._jvm
    return {
        "headrace": hr.__version__,
        "spark": spark.version,
        "kafka": KAFKA.version,
        "confluent-kafka": version("confluent-kafka"),
        "java": jvm.System.getProperty("java.version"),
        "python": platform.python_version(),
    }


class Meter:
    """Processor time of this process and of Spark's: it hardly depends on who else is at work."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._processes = (psutil.Process(), psutil.Process(jvm.java.lang.ProcessHandle.current().pid()))

    def seconds(self) -> float:
        return sum(used.user + used.system for used in (process.cpu_times() for process in self._processes))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
