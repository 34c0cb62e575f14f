"""Pipelines from Kafka through Spark to stores, with delivery guarantees that are explicit, checked and tested.

Names are imported when they are first used: `import headrace` loads neither connectors nor Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._version import __version__
from headrace.support.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.core.dead_letters import DeadLetters
    from headrace.core.delivery import Guarantee
    from headrace.core.planner import Limits
    from headrace.formats.avro import Avro
    from headrace.formats.csv import Csv
    from headrace.formats.custom import Custom
    from headrace.formats.json import Json
    from headrace.formats.protobuf import Protobuf
    from headrace.formats.raw import Bytes, Text
    from headrace.kafka.source import Kafka
    from headrace.kafka.subscription import Subscription
    from headrace.runtime.exactly_once import exactly_once
    from headrace.runtime.metrics_export import Metrics, OpenTelemetry
    from headrace.runtime.pipeline import Pipeline
    from headrace.runtime.retry import Retry
    from headrace.runtime.run_handle import Run, RunStatus
    from headrace.runtime.stream import stream
    from headrace.spark.notebook import session
    from headrace.spark.session import configure
    from headrace.tools.preview import preview
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Avro": "headrace.formats.avro",
            "Bytes": "headrace.formats.raw",
            "Csv": "headrace.formats.csv",
            "Custom": "headrace.formats.custom",
            "DeadLetters": "headrace.core.dead_letters",
            "Guarantee": "headrace.core.delivery",
            "Json": "headrace.formats.json",
            "Kafka": "headrace.kafka.source",
            "Limits": "headrace.core.planner",
            "Metrics": "headrace.runtime.metrics_export",
            "OpenTelemetry": "headrace.runtime.metrics_export",
            "Pipeline": "headrace.runtime.pipeline",
            "Protobuf": "headrace.formats.protobuf",
            "Retry": "headrace.runtime.retry",
            "Run": "headrace.runtime.run_handle",
            "RunStatus": "headrace.runtime.run_handle",
            "Subscription": "headrace.kafka.subscription",
            "Text": "headrace.formats.raw",
            "configure": "headrace.spark.session",
            "exactly_once": "headrace.runtime.exactly_once",
            "preview": "headrace.tools.preview",
            "session": "headrace.spark.notebook",
            "stream": "headrace.runtime.stream",
        },
        submodules=("errors", "events", "sinks", "stores", "types"),
    )

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
    "Metrics",
    "OpenTelemetry",
    "Pipeline",
    "Protobuf",
    "Retry",
    "Run",
    "RunStatus",
    "Subscription",
    "Text",
    "__version__",
    "configure",
    "exactly_once",
    "preview",
    "session",
    "stream",
]
