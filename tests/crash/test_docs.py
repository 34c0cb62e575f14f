"""The sink of the documentation, killed at every point as on its page."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "write-a-sink.md"

PIPELINE = """
import headrace as hr
from headrace import stores

clicks = hr.Pipeline(
    name="docs",
    source=hr.Kafka({bootstrap!r}, topics=[{topic!r}], format=hr.Json("id BIGINT")),
    sink=JsonFiles({rows!r}),
    guarantee="exactly-once",
    offsets=stores.SQLite({offsets!r}),
)
"""


def test_the_sink_of_the_page_keeps_exactly_once(topic, spark, tmp_path):
    sink, _, proof = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    events = topic(partitions=2)
    rows = tmp_path / "rows"
    app = tmp_path / "app.py"
    place = {"bootstrap": events.bootstrap, "topic": events.name, "rows": str(rows), "offsets": str(tmp_path / "o.db")}
    app.write_text(sink + PIPELINE.format(**place))
    page = {}
    exec(compile(proof, PAGE.name, "exec"), page)

    def read_ids():
        return [row["id"] for file in rows.glob("*.json") for row in json.loads(file.read_text())]

    page["prove"](f"{app}:clicks", events, read_ids, spark)
    assert len(read_ids()) == len(events.acknowledged) > 0
