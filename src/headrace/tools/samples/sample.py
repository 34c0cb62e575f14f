"""The record that a sample generator yields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime


class Sample(NamedTuple):
    """One record; `at` is its event time."""

    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    at: datetime


def as_json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
