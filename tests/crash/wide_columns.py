"""Tables in Cassandra and HBase of the crash suites, with the offsets in the same system."""

import hashlib
import os

from headrace import sinks, stores


def _table(directory):
    return "t_" + hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def cassandra(directory, **how):
    return sinks.Cassandra(os.environ["CASSANDRA_HOSTS"], f"crash.{_table(directory)}", create=True, **how)


def cassandra_offsets(directory):
    return stores.Cassandra(os.environ["CASSANDRA_HOSTS"], keyspace="crash", create=True)


def cassandra_rows(directory):
    from cassandra.cluster import Cluster

    host, port = os.environ["CASSANDRA_HOSTS"].split(":")
    with Cluster([host], port=int(port), protocol_version=4) as cluster:
        session = cluster.connect()
        asked = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'crash' AND table_name = %s"
        if not list(session.execute(asked, [_table(directory)])):
            return []
        return [tuple(row) for row in session.execute(f"SELECT id, value FROM crash.{_table(directory)}")]


def hbase(directory, **how):
    return sinks.HBase(os.environ["HBASE_THRIFT"], _table(directory), create=True, **how)


def hbase_offsets(directory):
    return stores.HBase(os.environ["HBASE_THRIFT"])


def hbase_rows(directory):
    import happybase

    host, port = os.environ["HBASE_THRIFT"].split(":")
    connection = happybase.Connection(host, int(port))
    try:
        if _table(directory).encode() not in connection.tables():
            return []
        found = [cells for _, cells in connection.table(_table(directory)).scan()]
    finally:
        connection.close()
    return [(int(cells[b"d:id"]), cells[b"d:value"].decode()) for cells in found]


# name, which is also that of its server: (sink, offsets, rows)
KINDS = {
    "cassandra": (cassandra, cassandra_offsets, cassandra_rows),
    "hbase": (hbase, hbase_offsets, hbase_rows),
}
