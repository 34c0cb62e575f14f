"""Tables that the crash suites write to, as plain data: how a sink is made, and how every row in it is read."""

from headrace.sinks.delta import Delta


def delta(directory):
    return Delta(directory / "delta")


def delta_rows(directory):
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(directory / "delta")
    except TableNotFoundError:
        return []
    return [(row["id"], row["value"]) for row in table.to_pyarrow_table().to_pylist()]


# name: (sink, rows). The offsets of each are in a store beside it.
TABLES = {"delta": (delta, delta_rows)}
