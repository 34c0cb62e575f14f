"""Lengths of time as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_SHORT = re.compile(r"(\d+)\s*(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def duration(text: str) -> timedelta | None:
    """`1h`, `30m`, `PT1H30M`, `P1D`; None for anything else."""
    try:
        if short := _SHORT.fullmatch(text):
            return timedelta(**{_UNITS[short[2]]: int(short[1])})
        iso = _ISO.fullmatch(text)
        if iso is None or not any(iso.groups()):
            return None
        days, hours, minutes, seconds = (int(part or 0) for part in iso.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (OverflowError, ValueError):  # longer than Python has a length for, or a number than it reads
        return None
