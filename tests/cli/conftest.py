import textwrap

import pytest

APP = """
    import headrace as hr
    from headrace import sinks, stores
    from pyspark.sql.functions import udf
    from pyspark.sql.types import LongType

    def transform(rows):
        {transform}

    clicks = hr.Pipeline(
        name="clicks",
        source=hr.Kafka("{bootstrap}", topics=["{topic}"], format={format}),
        transform=transform,
        sink={sink},
        guarantee="{guarantee}",
        {more}
    )
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """`app(topic, sink=…)` writes an app.py with a pipeline that works but for what is passed."""
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))

    def write(where=None, /, **changes):
        path = tmp_path / "app.py"
        values = {
            "bootstrap": where.bootstrap if where else "nowhere:1",
            "topic": where.name if where else "clicks",
            "format": 'hr.Json("id BIGINT, at TIMESTAMP")',
            "sink": f'sinks.DuckDB("{tmp_path}/x.duckdb", table="t")',
            "guarantee": "exactly-once",
            "transform": "return rows",
            "more": "",
            **changes,
        }
        path.write_text(textwrap.dedent(APP).format(**values))
        return path

    return write
