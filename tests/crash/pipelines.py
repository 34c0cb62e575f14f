"""The pipelines that the crash suites kill; which one is said by the environment."""

import os
from pathlib import Path

import headrace as hr
from headrace import sinks, stores


class Appending(sinks.Sink):
    """The plainest sink there is: a line per row at the end of a file. A repeated batch is there twice."""

    def __init__(self, path):
        self._path = Path(path)

    def write(self, batch, rows):
        lines = "".join(f"{row['id']}\n" for row in rows.select("id").toArrow().to_pylist())
        with self._path.open("a") as out:
            out.write(lines)
            out.flush()
            os.fsync(out.fileno())


def sink(kind, directory):
    match kind:
        case "duckdb":
            return sinks.DuckDB(directory / "rows.duckdb", table="rows")
        case "parquet":
            return sinks.Parquet(directory / "rows")
        case "appending":
            return Appending(directory / "rows.txt")


def stored(kind, directory):
    """Every id in the sink, as often as it is there."""
    import duckdb

    match kind:
        case "duckdb":
            with duckdb.connect(str(directory / "rows.duckdb"), read_only=True) as connection:
                tables = connection.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'rows'").fetchone()
                return [i for (i,) in connection.execute("SELECT id FROM rows").fetchall()] if tables[0] else []
        case "parquet":
            files = [str(file) for file in (directory / "rows").glob("headrace_batch=*/*.parquet")]
            return [i for (i,) in duckdb.sql(f"SELECT id FROM read_parquet({files})").fetchall()] if files else []
        case "appending":
            text = (directory / "rows.txt").read_text() if (directory / "rows.txt").exists() else ""
            return [int(line) for line in text.splitlines()]


def pipeline(kind, guarantee, bootstrap, topic, directory):
    transactional = kind == "duckdb"
    return hr.Pipeline(
        name="crash",
        source=hr.Kafka(bootstrap, topics=[topic], format=hr.Json("id BIGINT")),
        sink=sink(kind, directory),
        guarantee=guarantee,
        offsets=None if transactional else stores.SQLite(directory / "offsets.db"),
        limits=hr.Limits(max_records=40),
    )


def environment(kind, guarantee, bootstrap, topic, directory):
    return {"CRASH": f"{kind},{guarantee},{bootstrap},{topic},{directory}"}


if "CRASH" in os.environ:
    _kind, _guarantee, _bootstrap, _topic, _directory = os.environ["CRASH"].split(",")
    crash = pipeline(_kind, _guarantee, _bootstrap, _topic, Path(_directory))
