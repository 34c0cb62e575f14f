"""The headers of a message as confluent-kafka has it, asked for once."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

# Not `message.headers()`: that is a direct call of the C function once Python has seen it often enough, which does not
# notice that the client returns a list and an exception at once. Whatever is called next would raise it.
_asked = methodcaller("headers")

Headers = tuple[tuple[str, bytes | None], ...]


def headers_of(message: Any) -> Headers:
    """None where the client cannot tell them: a name that is not UTF-8 makes it raise SystemError.

    Ask once per message, and by this function alone: after the error the client holds a list that is half made, and
    the next question about the same message ends the process.
    """
    try:
        return tuple(_asked(message) or ())
    except SystemError:
        return ()
