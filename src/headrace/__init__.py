"""Kafka to Spark to stores, with a delivery guarantee that is named, checked and proven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.delivery import Guarantee
from headrace.formats.avro import Avro
from headrace.formats.csv import Csv
from headrace.formats.custom import Custom
from headrace.formats.json import Json
from headrace.formats.plain import Bytes, Text
from headrace.formats.protobuf import Protobuf
from headrace.kafka.source import Kafka
from headrace.kafka.subscription import Subscription
from headrace.letters import DeadLetters
from headrace.pace import Retry
from headrace.pipeline import Pipeline
from headrace.planner import Limits
from headrace.stream import stream
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.preview_rows import preview
    from headrace.run_handle import Run, RunStatus
    from headrace.spark.notebook import session
    from headrace.spark.session import configure

__all__ = [
    "Avro",
    "Bytes",
    "Csv",
    "Custom",
    "DeadLetters",
    "Guarantee",
    "Json",
    "Kafka",
    "Limits",
    "Pipeline",
    "Protobuf",
    "Retry",
    "Run",
    "RunStatus",
    "Subscription",
    "Text",
    "__version__",
    "configure",
    "preview",
    "session",
    "stream",
]


def __getattr__(name: str) -> Any:
    if name == "configure":  # needs pyspark, which takes its time to import
        from headrace.spark.session import configure

        return configure
    if name == "session":
        from headrace.spark.notebook import session

        return session
    if name == "preview":
        from headrace.preview_rows import preview

        return preview
    if name in ("Run", "RunStatus"):
        from headrace import run_handle

        return getattr(run_handle, name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
