"""Redis and effects in the crash suites: creates the sinks and reads all rows that reached them."""

import hashlib
import os

from headrace import sinks, stores


def _url():
    return os.environ["REDIS_URL"]


def _name(directory):
    return "r-" + hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def _client():
    import redis

    return redis.Redis.from_url(_url(), decode_responses=True)


def redis_hash(directory, **how):
    return sinks.Redis(_url(), _name(directory), **how)


def redis_hash_rows(directory):
    with _client() as client:
        found = [client.hgetall(key) for key in client.scan_iter(f"{_name(directory)}:*", count=10_000)]
    return [(int(row["id"]), row["value"]) for row in found]


def redis_stream(directory):
    return sinks.Redis(_url(), _name(directory), structure="stream")


def redis_stream_rows(directory):
    with _client() as client:
        return [(int(row["id"]), row["value"]) for _, row in client.xrange(_name(directory))]


def foreach(directory, mark="after"):
    """Appends a line per effect, which survives a kill of the process, and waits a moment before the mark."""
    path = str(directory / "effects.txt")

    def effect(row):
        import os
        import time

        out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(out, f"{row['id']} {row['value']}\n".encode())
        os.close(out)
        time.sleep(0.002)

    return sinks.Foreach(effect, once=stores.Redis(_url()), mark=mark)


def effects(directory):
    file = directory / "effects.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(number), value) for number, value in (line.split() for line in lines)]


# name: (sink, rows). The offsets are in a separate store.
EXACT = {"redis": (redis_hash, redis_hash_rows), "redis stream": (redis_stream, redis_stream_rows)}

# Never exactly-once. A kill of the driver between two steps repeats and loses none, as every message is marked.
MARKED = {
    "foreach, once": (foreach, effects),
    "foreach, marked before": (lambda directory: foreach(directory, mark="before"), effects),
}
