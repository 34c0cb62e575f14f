"""Addresses as they may be shown: without the password."""

from __future__ import annotations

import re

# Up to the last @, wherever it is: a password that should have been percent-encoded must not show half.
_IN_URL = re.compile(r"(://[^:/@]*:).*@", re.DOTALL)
_IN_QUERY = re.compile(r"(\w*password=)[^&\s]*", re.IGNORECASE)
_IN_KEYWORDS = re.compile(r"(\w*password\s*=\s*)('(?:\\.|[^'\\])*'?|(?:\\.|\S)*)", re.IGNORECASE | re.DOTALL)


def masked(address: str) -> str:
    """A URL or a `key=value` connection string with `***` where its passwords are."""
    if "://" in address:
        return _IN_QUERY.sub(r"\1***", _IN_URL.sub(r"\1***@", address))
    return _IN_KEYWORDS.sub(r"\1***", address)
