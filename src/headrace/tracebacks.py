"""Tracebacks that point into the user's code."""

from __future__ import annotations

import traceback
from pathlib import Path

_OURS = str(Path(__file__).parent)
_DRIVERS = ("/site-packages/pyspark/", "/site-packages/py4j/", "/pyspark.zip/", "/py4j-")


def in_user_code(error: BaseException) -> str:
    """The frames of `error` without Headrace's and Spark's own; empty if nothing else is left."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OURS) and not any(part in frame.filename for part in _DRIVERS)
    ]
    return "".join(traceback.format_list(frames))


def short(error: BaseException) -> str:
    """The error in a line: what a worker's Python traceback ends with, or the first line of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    for number, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            # The raised error is the first line after the frames that does not belong to one.
            after = [text for text in lines[number + 1 :] if _is_error(text)]
            return after[0] if after else lines[0]
    return lines[0]


def _is_error(line: str) -> bool:
    name, colon, _ = line.partition(":")
    return bool(colon) and name.replace(".", "").replace("_", "").isalnum() and name[-1:].isalpha() and " " not in name
