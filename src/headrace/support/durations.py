"""Parses durations."""

from __future__ import annotations

import math
import re
from datetime import timedelta

_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_SHORT = re.compile(r"(\d+)\s*(ms|s|m|h|d|w)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def duration(text: str) -> timedelta | None:
    """Parse `500ms`, `1h`, `30m`, `PT1H30M` or `P1D`; None for any other text."""
    try:
        if short := _SHORT.fullmatch(text):
            return timedelta(**{_UNITS[short[2]]: int(short[1])})
        iso = _ISO.fullmatch(text)
        if iso is None or not any(iso.groups()):
            return None
        days, hours, minutes, seconds = (int(part or 0) for part in iso.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (OverflowError, ValueError):  # longer than a timedelta, or more digits than Python parses
        return None


def seconds(value: object) -> float | None:
    """The seconds of a text such as `10m`, of a timedelta, or of a number; None for any other value, and for 0."""
    length = duration(value) if isinstance(value, str) else value
    if isinstance(length, timedelta):
        length = length.total_seconds()
    if not isinstance(length, int | float) or isinstance(length, bool) or not 0 < length < math.inf:
        return None
    return float(length)
