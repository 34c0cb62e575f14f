"""Tables of the crash suites: creates the sinks and reads all rows in them."""

from contextlib import suppress

from headrace import sinks
from headrace.connectors.delta import compaction
from headrace.connectors.delta.sink import Delta
from headrace.connectors.iceberg.sink import Iceberg
from headrace.connectors.jdbc.connection import Database
from headrace.connectors.jdbc.sink import Jdbc
from headrace.errors import HeadraceError


def delta(directory):
    return Delta(directory / "delta")


class CompactedDelta(sinks.Delta):
    """Compacts at each start, so that a repeated batch has just been merged."""

    def open(self, pipeline):
        if (self.local_path / "_delta_log").is_dir():
            compaction.compact(str(self.local_path), target=1_000_000, execute=True)
        return super().open(pipeline)


def compacted_delta(directory):
    return CompactedDelta(directory / "delta")


def delta_rows(directory):
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(directory / "delta")
    except TableNotFoundError:
        return []
    return [(row["id"], row["value"]) for row in table.to_pyarrow_table().to_pylist()]


def _catalog(directory):
    return {
        "type": "sql",
        "uri": f"sqlite:///{directory / 'catalog.db'}",
        "warehouse": (directory / "warehouse").as_uri(),
    }


def iceberg(directory):
    return Iceberg("crash.rows", properties=_catalog(directory))


def iceberg_rows(directory):
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    try:
        table = load_catalog("default", **_catalog(directory)).load_table("crash.rows")
    except NoSuchTableError:
        return []
    return [(row["id"], row["value"]) for row in table.scan().to_arrow().to_pylist()]


def _derby(directory):
    """Derby ships with Spark and runs in its JVM: a kill of a run with its JVM also kills the database."""
    return f"jdbc:derby:{directory / 'derby'}"


def jdbc(directory):
    return Jdbc(f"{_derby(directory)};create=true", table="rows", create=True)


def jdbc_rows(directory):
    if not (directory / "derby").exists():
        return []
    with Database(f"{_derby(directory)};create=true").connected() as connection:
        there = connection.can_read('"rows"')
        rows = connection.query('SELECT "id", CAST("value" AS VARCHAR(20)) FROM "rows"') if there else []
    # Only one JVM at a time may open the database. It reports its shutdown as an error.
    with suppress(HeadraceError), Database(f"{_derby(directory)};shutdown=true").connected():
        pass
    return rows


# name: (sink, rows). The offsets are in a separate store.
TABLES = {
    "delta": (delta, delta_rows),
    "delta, compacted at every start": (compacted_delta, delta_rows),
    "iceberg": (iceberg, iceberg_rows),
}

# The same, for suites that give each run its own JVM. In a shared JVM the transaction of a killed run would stay open,
# with its locks, because its connection ends only with the JVM.
TABLES_WITH_OWN_JVM = {"jdbc": (jdbc, jdbc_rows)}
