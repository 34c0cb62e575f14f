"""Redaction: what may be shown of addresses, connection strings, settings and messages that may hold a secret.

Where a value cannot be told from its surroundings, too much is masked rather than too little.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORDS = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|jaas|credential|signature"
    r"|(?:api|access|account|private|shared|encryption)[_.-]?key|keystore[_.-]key"
)
_NAME = re.compile(rf"{_WORDS}|(?:^|[._-])(?:pass|pw|sig|pem|key)$", re.IGNORECASE)

# Between :// and the last @, wherever that is: a password that should have been percent-encoded must not show half.
_URL = re.compile(r"([\w+.-]*)://([^:]*?)(:.*)?@(?!.*@)", re.DOTALL)
# Where a name without a password is usual. Elsewhere it is a token, or a password whose colon was forgotten.
_SCHEMES_WITH_USERS = frozenset({"postgresql", "postgres", "mysql", "mariadb", "mongodb", "mongodb+srv", "sqlserver"})
_ORACLE = re.compile(r"(jdbc:oracle:\w+:[^/@]*/).*@", re.DOTALL | re.IGNORECASE)
_VALUE = (
    r"'(?:\\.|''|[^'\\])*'(?=[\s&;,)}\]]|$)"  # libpq, Python
    r'|"(?:\\.|[^"\\])*"(?=[\s&;,)}\]]|$)'  # JSON, JAAS, Python
    r"|\{(?:\}\}|[^}])*\}(?=;|$)"  # SQL Server, ODBC
    r"|.*?(?=[ \t\r\n&;,()]+[\w.$-]+[ \t]*=|$)"  # up to the next key, for the value may hold what separates keys
)
_PAIR = re.compile(
    rf"((?<![\w.$-])[\w.$-]*(?:{_WORDS})[\w.$-]*[ \t]*=[ \t]*|(?<![\w.$-])(?:pass|pw|sig)[ \t]*=[ \t]*)(?:{_VALUE})",
    re.IGNORECASE | re.DOTALL,
)
_ENTRY = re.compile(
    rf"""((['"])[\w.$-]*(?:{_WORDS})[\w.$-]*\2\s*:\s*)('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^,}}]*)""",
    re.IGNORECASE | re.DOTALL,
)
_HEADER = re.compile(r"\b(Bearer|Basic)\s+[^\s'\"]+", re.IGNORECASE)


def masked(text: str) -> str:
    """A URL, a connection string, settings or a text with some of them, with `***` where their secrets are."""
    text = _URL.sub(_without_password, text)
    text = _ORACLE.sub(r"\1***@", text)
    text = _ENTRY.sub(r"\1***", text)
    text = _PAIR.sub(r"\1***", text)
    return _HEADER.sub(r"\1 ***", text)


def _without_password(url: re.Match[str]) -> str:
    scheme, user, password = url.groups()
    if password:
        return f"{scheme}://{user}:***@"
    return url[0] if scheme.lower() in _SCHEMES_WITH_USERS else f"{scheme}://***@"


def is_secret(name: str) -> bool:
    """Whether the value of a setting must not be shown, by its name."""
    return _NAME.search(name) is not None


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with `***` for each of `secrets`, as they are and as URLs, JSON and Python write them."""
    forms = {
        form
        for secret in secrets
        if secret
        for form in (
            secret,
            quote(secret, safe=""),
            quote(secret),
            quote_plus(secret),
            json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1],
            repr(secret)[1:-1],
        )
    }
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text
