"""Formats text: escaped control characters, counted nouns. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

# Characters that control a terminal or change the order of text: C0 except the tab, DEL, C1, line and
# paragraph separators, direction marks and the byte order mark; and surrogates, which are not characters.
UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` on one line, safe for a terminal or a log: control characters are escaped."""
    return UNSAFE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """`text` of several lines, each printable. Lines after the first are indented, so that none can pose as a message
    of its own."""
    first, *rest = text.split("\n")
    return "\n".join([printable(first), *(f"  {printable(line)}" for line in rest)])


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in ASCII; also escapes DEL, which Python does not."""
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


def counted(number: int, noun: str) -> str:
    """`1 record`, `2,000 records`, `3 batches`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith(('ch', 's', 'x')) else 's'}"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {10: "\\n", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
