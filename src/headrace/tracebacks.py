"""Tracebacks that point into the user's code."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parent)
_DRIVERS = (
    *(f"/site-packages/{package}/" for package in ("pyspark", "py4j", "typer", "click")),
    "/pyspark.zip/",
    "/py4j-",
)
_WORKER = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t].*\n)+)(\S.*)")
"""The traceback of a Python worker inside Spark's message: its frames, then the error that was raised."""
_FRAME = re.compile(r'^[ \t]*File "([^"]+)", line \d+, in .*\n(?:[ \t]{4,}.*\n)*', re.MULTILINE)


_JAVA = re.compile(r"^(?::|Caused by:) (?:[\w$]+\.)+([\w$]+(?:: .*)?)$", re.MULTILINE)
"""An exception and its causes, as Java writes them: the last one says what is wrong."""


def in_user_code(error: BaseException) -> str:
    """The frames of `error`, on the driver and on a worker, without Headrace's and Spark's own."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    shown = "".join(traceback.format_list(frames))
    if worker := _WORKER.search(str(error)):
        shown += "".join(frame[0] for frame in _FRAME.finditer(worker[1]) if _is_users(frame[1]))
    return shown


def short(error: BaseException) -> str:
    """The error in a line: what a worker's traceback ends with, the last cause in Java, or the first line."""
    text = str(error)
    if worker := _WORKER.search(text):
        return worker[2].strip()
    if text.startswith("An error occurred while calling") and (causes := _JAVA.findall(text)):
        return str(causes[-1]).strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def _is_users(filename: str) -> bool:
    return not filename.startswith(_OURS) and not any(part in filename for part in _DRIVERS)
