"""A manual batch loop that dies at a given point.

python loop.py DIRECTORY BOOTSTRAP TOPIC [POINT…]: it survives the given points.
"""

import os
import signal
import sqlite3
import sys

import headrace as hr
from headrace import stores
from headrace.support import crashpoints
from headrace.testing.shared_jvm import attached_session


def main(directory: str, bootstrap: str, topic: str, *spared: str) -> None:
    def hook(point: str) -> None:
        if point not in spared:
            os.write(1, f"{point}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    database = sqlite3.connect(f"{directory}/rows.db")
    database.execute("CREATE TABLE IF NOT EXISTS once (partition INT, at INT, n INT, PRIMARY KEY (partition, at))")
    database.execute("CREATE TABLE IF NOT EXISTS each (batch INT, n INT)")
    crashpoints.install(hook)
    with hr.stream(
        hr.Kafka(bootstrap, topics=[topic], format=hr.Json("n INT")),
        offsets=stores.SQLite(f"{directory}/offsets.db"),
        limits=hr.Limits(max_records=40),
        until="caught-up",
        session=attached_session(),
    ) as batches:
        for batch in batches:
            rows = batch.rows().selectExpr("_kafka.partition", "_kafka.offset", "n").collect()
            crashpoints.reach("loop: before the work")
            with database:
                database.executemany("INSERT OR IGNORE INTO once VALUES (?, ?, ?)", rows)
                database.executemany("INSERT INTO each VALUES (?, ?)", [(batch.id, n) for _, _, n in rows])
            crashpoints.reach("loop: after the work")
            batch.commit()
            crashpoints.reach("loop: committed")


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # Spark belongs to the parent: do not stop it
