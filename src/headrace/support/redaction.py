"""Masks secrets in addresses, connection strings, settings and messages.

If the end of a value is ambiguous, it masks too much rather than too little. Every step takes time linear in the length
of the text, because the text may come from an attacker.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

from headrace.errors import RetriableError
from headrace.support.tracebacks import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_NAME = re.compile(
    r"pass(?:word|wd|phrase|code)|pwd|secret|token|jaas|credential|signature|authorization|user[_.-]?info|sslkey"
    r"|(?:api|access|account|private|pvt|shared|encryption|customer|auth)[_.-]?key|keystore[_.-]key"
    r"|fs[_.-]azure[_.-]sas|connection[_.-]?string"
    r"|cookie|assertion|(?:db|user)pass$|(?:^|[._-])(?:pass|pw|sig|sas|pem|key|jwt)$",
    re.IGNORECASE,
)
_OTHER_KEYS = re.compile(
    r"(?:primary|partition|sort|shard|row|hash|range|record|message|unique|foreign|_kafka)[_.-]key$", re.IGNORECASE
)
"""Names of keys that are not secrets."""

_WORD = re.compile(r"(?<![\w.$-])[\w.$-]++")
_TOKEN_REVERSED = re.compile(r"[^\s\"'<>,;()]*+")
_BEFORE_COLON = re.compile(r"(?<![\w+.-])([\w+.-]++):")
_SCHEME_REVERSED = re.compile(r"[\w+.-]*+")
_WRAPPERS = ("jdbc", "r2dbc")
"""Prefixes of a URL before its scheme, with a colon."""
# Schemes in which a user without a password is usual. In others it is a token, or a password without its colon.
_SCHEMES_WITH_USERS = frozenset({"postgresql", "postgres", "mysql", "mariadb", "mongodb", "mongodb+srv", "sqlserver"})
_ORACLE = re.compile(r"jdbc:oracle:\w{1,20}:[^/@\s]{0,200}/", re.IGNORECASE)

_EQUALS = re.compile(r"""\\?['"]?[ \t]*+(?:=|->)[ \t]*+""")
_ENTRY = re.compile(r"""\\*+['"]\s*+([:,])\s*+""")
_COLON = re.compile(r"[ \t]*+:[ \t]++(?=\S)")
_TIGHT_COLON = re.compile(r""":(?!\d{1,5}(?:[\s/?#,;:)\]}'"]|$)|//|\*\*\*)(?=[^\s:'"])""")
"""Excludes a port or a partition number: names of hosts and topics may look like those of secrets."""
_ENCODED = re.compile(r"%(25)?3D", re.IGNORECASE)
_BLANK = re.compile(r"[ \t]++(?=[^\s-])")

_QUOTED = {
    "'": re.compile(r"'(?:\\.|''|[^'\\])*+\\?'?", re.DOTALL),  # libpq, Python
    '"': re.compile(r'"(?:\\.|[^"\\])*+\\?"?', re.DOTALL),  # JSON, JAAS, Python
    "\\": re.compile(r"""(\\++)(["'])(?:(?!(?<!\\)\1\2).)*+(?:\1\2)?""", re.DOTALL),  # JSON in JSON, however deep
    "{": re.compile(r"\{(?:\}\}|[^}])*+\}?"),  # SQL Server, ODBC
}
_CLOSED = re.compile(r"[\s&;,)}\]]|$")
_NEXT = re.compile(r"(?<=[ \t\r\n&;,()])[\w.$-]++[ \t]*+=")
_SEPARATORS = " \t\r\n&;,()"
_ITEM = re.compile(r"[\[(][^\r\n]*+|[^,}]*+")
_LINE = re.compile(r"[^\r\n]*+")
_ARGUMENT = re.compile(r"\S++")
_PART = re.compile(r"""[^\s&'"]++""")
_ENCODED_VALUE = re.compile(r"(?:[^&\s%'\"]|%(?!26))*+")
_TWICE_ENCODED_VALUE = re.compile(r"(?:[^&\s%'\"]|%(?!(?:25)?26))*+")

_HEADER = re.compile(r"\b(Bearer|Basic)\s++[^\s'\"]++", re.IGNORECASE)
_KINDS = re.compile(r"(?:Bearer|Basic|Digest|Negotiate|Token|ApiKey)[ \t]++(?=\S)", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{1,60}-----.*?(?:-----END [A-Z0-9 ]{1,60}-----|\Z)", re.DOTALL)
_ELEMENT = re.compile(r"<(?:[\w-]{1,60}:)?([\w.$-]++)(?:\s[^<>]*+)?>([^<]*+)")
_PROPERTY = re.compile(r"<name>\s*+([\w.$-]++)\s*+</name>\s*+<value>([^<]*+)", re.IGNORECASE)
_TOKEN = re.compile(r"[^\s\"'<>,;()]++")


def masked(text: str) -> str:
    """A URL, a connection string, settings, or a text that contains them, with `***` in place of secrets.

    Sink identities contain its results: an address that is masked now must be masked in the same way in every version.
    """
    text = _PEM.sub("***", text) if "-----BEGIN" in text else text
    text = _mask_oracle_url(_mask_url(text)) if "@" in text else text
    if "<" in text:
        text = _PROPERTY.sub(_mask_element, _ELEMENT.sub(_mask_element, text))
    text = _HEADER.sub(r"\1 ***", _mask_named_values(text))
    return _TOKEN.sub(_mask_user_info, text) if "@" in text else text


def is_ambiguous(url: str) -> bool:
    """Whether a driver may take a part of the password for the host, and quote it: the URL has an unencoded @."""
    return "://" in url and url.partition("?")[0].count("@") > 1


def is_secret(name: str) -> bool:
    """Whether the name of a setting indicates that its value is a secret."""
    return _NAME.search(name) is not None and _OTHER_KEYS.search(name) is None


def secrets_of(settings: Mapping[str, object]) -> frozenset[str]:
    """The values of `settings` that are secrets."""
    return frozenset(str(value) for name, value in settings.items() if value and is_secret(name))


def _mask_url(text: str) -> str:
    """Mask from :// to the last @, wherever it is: no part of a password without percent-encoding may be visible."""
    begin, end = text.find("://"), text.rfind("@")
    if not 0 <= begin < end:
        return text
    before = _last(_TOKEN_REVERSED, text[:begin])
    wrapper = _BEFORE_COLON.search(before)
    span = _secret_span(text, end)
    if wrapper and wrapper[1].lower() not in _WRAPPERS:  # user:password@host with :// in the password
        return f"{text[: begin - len(before) + wrapper.end()]}***{text[span[1] if span else end :]}"
    with_user = _last(_SCHEME_REVERSED, before).lower() in _SCHEMES_WITH_USERS
    user, colon, password = text[begin + 3 : span[0] if span else end].partition(":")
    if span:  # the @ may belong to either of two secrets: mask both, if there may be two
        is_name = not colon and with_user
        return text if is_name else f"{text[: begin + 3]}{user if colon else ''}{colon}***{text[span[1] :]}"
    if not colon:
        user = user if with_user else "***"
    shown = f"{user}{colon}{'***' if password else ''}"
    return f"{text[: begin + 3]}{shown}{text[end:]}"


def _secret_span(text: str, at: int) -> tuple[int, int] | None:
    """The span of the named secret that contains the position `at`; None if there is none."""
    elements = [found for kind in (_ELEMENT, _PROPERTY) for found in kind.finditer(text)] if "<" in text else []
    spans = [
        *_value_spans(text),
        *(found.span(2) for found in elements if is_secret(found[1])),
        *(found.span() for found in _HEADER.finditer(text)),
    ]
    return next((span for span in spans if span[0] <= at < span[1]), None)


def _last(reversed_pattern: re.Pattern[str], text: str) -> str:
    found = reversed_pattern.match(text[::-1])
    return found[0][::-1] if found else ""


def _mask_oracle_url(text: str) -> str:
    found, end = _ORACLE.search(text), text.rfind("@")
    if found is None or found.end() > end:
        return text
    span = _secret_span(text, end)
    return f"{text[: found.end()]}***{text[span[1] if span else end :]}"


def _mask_element(found: re.Match[str]) -> str:
    """Mask an XML element."""
    return f"{found[0][: found.start(2) - found.start()]}***" if found[2].strip() and is_secret(found[1]) else found[0]


def _mask_user_info(found: re.Match[str]) -> str:
    """Mask `user:password@host` without a URL scheme."""
    before, at, host = found[0].rpartition("@")
    user, colon, password = before.partition(":")
    if not at or not colon or not password or not (host[:1].isalnum() or host[:1] == "[") or before.endswith("***"):
        return found[0]
    return found[0] if password.startswith("//") else f"{user}:***@{host}"


def _mask_named_values(text: str) -> str:
    """Mask values that follow their name: pairs, entries of JSON and Python, headers, arguments."""
    shown, at = [], 0
    for begin, end in _value_spans(text):
        shown.append(text[at:begin] + "***")
        at = end
    return "".join([*shown, text[at:]])


def _value_spans(text: str) -> Iterator[tuple[int, int]]:
    """The span of each such value."""
    at = 0
    for name in _WORD.finditer(text):
        if name.start() >= at and (span := _value_span(text, name)) is not None:
            yield span
            at = span[1]


def _value_span(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    """The span of the value whose name is `found`, if it must be masked."""
    start, end = found.span()
    name, before = found[0], text[start - 1 : start]
    encoded = _ENCODED.match(text, end)
    if encoded and before == "%":
        name, before = name[2:], "?"
    if not is_secret(name) or (name.lower() == "key" and before not in ("?", "&")):
        return None
    if encoded:
        until = _TWICE_ENCODED_VALUE if encoded[1] else _ENCODED_VALUE
        return encoded.end(), _match_end(until, text, encoded.end())
    if pair := _EQUALS.match(text, end):
        return pair.end(), _pair_end(text, pair.end())
    if (entry := _ENTRY.match(text, end)) and (before in ("'", '"') or entry[1] == ":"):
        at = entry.end() + (text[entry.end() : entry.end() + 2] in ("b'", 'b"'))
        quoted = text[at : at + 1] in ("'", '"', "\\")
        if entry[1] == ":":
            return at, _value_end(text, at, _ITEM)
        # The first of two adjacent texts is a name only at the start of a pair; otherwise they are a list of names.
        first = text[max(0, start - 4) : start - 1].rstrip(" \\b")[-1:] in ("(", "[")
        return (at, _value_end(text, at, _ITEM)) if quoted and (first or name.startswith("-")) else None
    if colon := _COLON.match(text, end) or _TIGHT_COLON.match(text, end):
        at = colon.end()
        until = _LINE if text[at - 1] in " \t" else _PART
        if kind := _KINDS.match(text, at):
            at = kind.end()
        return at, _match_end(until, text, at)
    if name.startswith("-") and (blank := _BLANK.match(text, end)):
        at = blank.end()
        return at, _value_end(text, at, _ARGUMENT) if text[at] in "'\"" else _match_end(_ARGUMENT, text, at)
    return None


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """The end of a match at `at`; `at` if there is none."""
    found = pattern.match(text, at)
    return found.end() if found else at


def _quoted_end(text: str, at: int) -> int:
    """The end of the quoted value that begins at `at`; `at` if there is none."""
    pattern = _QUOTED.get(text[at : at + 1])
    return at if pattern is None else _match_end(pattern, text, at)


def _value_end(text: str, at: int, plain: re.Pattern[str]) -> int:
    """The end of a value that is quoted or that matches `plain`."""
    end = _quoted_end(text, at)
    return end if end > at else _match_end(plain, text, at)


def _pair_end(text: str, at: int) -> int:
    """The end of the value of a pair that begins at `at`."""
    begin, quoted = at, _quoted_end(text, at)
    if quoted > begin and _CLOSED.match(text, quoted):
        return quoted
    # Up to the next key, because the value may contain separators.
    following = _NEXT.search(text, quoted)
    if following is None:
        return len(text)
    end = following.start()
    while end > begin and text[end - 1] in _SEPARATORS:
        end -= 1
    return end


def without_secrets(error: Exception, secrets: Iterable[str]) -> Exception:
    """The error, or one without the passwords that Spark or a client has put into its message."""
    secrets = frozenset(secrets)
    if redact(str(error), secrets) == str(error):
        return error
    return RetriableError(redact(short(error), secrets))


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with `***` for each of `secrets`, verbatim and as encoded in URLs, JSON and Python."""
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
