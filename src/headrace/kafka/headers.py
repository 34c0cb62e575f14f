"""Reads the headers of a confluent-kafka message, once per message."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

# Not `message.headers()`: after many calls Python specialises it to a direct call of the C function, which does not
# notice that the client returns a list and also sets an exception. An unrelated later call would then raise it.
_get_headers = methodcaller("headers")

Headers = tuple[tuple[str, bytes | None], ...]


def headers_of(message: Any) -> Headers:
    """None if the client cannot decode them: it raises SystemError for a name that is not UTF-8.

    Call this once per message, and do not read headers in another way: after the error the client has an incomplete
    list, and the next access to the headers of the same message crashes the process.
    """
    try:
        return tuple(_get_headers(message) or ())
    except SystemError:
        return ()
