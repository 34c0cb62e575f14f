"""The offset log of a Structured Streaming query: the end offsets of each source, as JSON texts. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def content_hash(offsets: Sequence[str | None]) -> str:
    """A hash of an entry: together with the number of a batch it tells what the batch reads."""
    canonical = json.dumps([_parsed(text) for text in offsets], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:20]


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:  # some sources write plain text
        return text
