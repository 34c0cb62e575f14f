"""Loopback ports for servers."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
# Below the usual ephemeral ranges: there, a client that keeps dialling a dead broker's port can connect
# to itself and hold the port when the broker wants it back.
_RANGE = range(10_000, 30_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
        return True


def free(count: int) -> list[int]:
    """`count` different ports that are free now."""
    found: list[int] = []
    for port in random.sample(_RANGE, len(_RANGE)):
        if len(found) == count:
            break
        if is_free(port):
            found.append(port)
    if len(found) < count:
        raise OSError(f"fewer than {count} free ports on {HOST} between {_RANGE.start} and {_RANGE.stop}")
    return found
