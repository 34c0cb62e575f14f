"""Finds free loopback ports, and checks whether a server answers on one."""

from __future__ import annotations

import random
import socket

from headrace.errors import ConfigError

HOST = "127.0.0.1"
# Below the usual ephemeral ranges: within them, a client that retries the port of a dead broker can connect
# to itself, and so occupy the port when the broker starts again.
_RANGE = range(10_000, 30_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like servers, which ignore TIME_WAIT
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
        return True


def choose_port(port: int | None, standard: int, server: str) -> int:
    """`port` if given, otherwise the server's usual port, or any free port if that is in use."""
    if port is None:
        return standard if is_free(standard) else free(1)[0]
    if not is_free(port):
        raise ConfigError(f"port {port} on {HOST} is in use", hint=f"headrace dev up {server}   (chooses a free port)")
    return port


def ask(port: int, *requests: bytes, answer: bytes, seconds: float = 1.0) -> bool:
    """Whether the reply to the last of `requests` contains `answer`. Sends each after the reply to the previous one.

    Used for readiness checks: it needs no client library, and closes its connection.
    """
    try:
        with socket.create_connection((HOST, port), seconds) as connection:
            reply = b""
            for request in requests:
                connection.sendall(request)
                reply = connection.recv(4096)
            while answer not in reply and (more := connection.recv(4096)):
                reply += more
            return answer in reply
    except OSError:
        return False


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
