"""Finds the user's code in tracebacks."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from headrace.text import printable

_HEADRACE = str(Path(__file__).parents[1])
_DRIVERS = (
    *(f"/site-packages/{package}/" for package in ("pyspark", "py4j", "typer", "click")),
    "/pyspark.zip/",
    "/py4j-",
)
_WORKER = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t].*\n)+)(\S.*)")
"""The traceback of a Python worker inside Spark's message: its frames, then the error that was raised."""
_FRAME = re.compile(r'^[ \t]*File "([^"]+)", line \d+, in .*\n(?:[ \t]{4,}.*\n)*', re.MULTILINE)


_JAVA = re.compile(r"^(?::|Caused by:) (?:[\w$]+\.)+([\w$]+(?:: .*)?)$", re.MULTILINE)
"""An exception and its causes as Java prints them; the last one has the reason."""


_CALLER = re.compile(r"was called from\n(\S.*):(\d+)$", re.MULTILINE)
"""The line of the DataFrame call whose expression failed."""
_SQLSTATE = re.compile(r" SQLSTATE: \w{5}(?=[;\s]|$);?")


def in_user_code(error: BaseException) -> str:
    """The frames of `error`, on the driver and on a worker, without those of Headrace and Spark."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_code(frame.filename)]
    shown = "".join(traceback.format_list(frames))
    if worker := _WORKER.search(str(error)):
        shown += "".join(frame[0] for frame in _FRAME.finditer(worker[1]) if _is_user_code(frame[1]))
    return "".join(f"{printable(line)}\n" for line in shown.removesuffix("\n").split("\n")) if shown else ""


def raised_on_worker(error: BaseException) -> list[str]:
    """The names of the exceptions in a worker's traceback, in order: those that were being handled come first.

    Names after the first may also be text of a record that an exception quotes.
    """
    return [re.split(r"[:\s]", last, maxsplit=1)[0] for _, last in _WORKER.findall(str(error))]


def user_line(error: BaseException) -> str | None:
    """`app.py:12`: the last line of the user's code that `error` came through, or that built the failing expression."""
    found = re.findall(r'File "([^"]+)", line (\d+)', in_user_code(error)) or _CALLER.findall(str(error))
    return f"{shown_path(found[-1][0])}:{found[-1][1]}" if found else None


def short(error: BaseException) -> str:
    """The error in one line: the end of a worker's traceback, the last cause in Java, or the first line.

    An analysis error of Spark is shortened to its message, without the plan and the SQLSTATE.
    """
    text = str(error)
    if worker := _WORKER.search(text):
        return printable(worker[2].strip())
    if text.startswith("An error occurred while calling") and (causes := _JAVA.findall(text)):
        return printable(str(causes[-1]).strip())
    text = _SQLSTATE.sub("", text)
    return next(
        (printable(line.strip().removesuffix(";")) for line in text.split("\n") if line.strip()), type(error).__name__
    )


def shown_path(filename: str) -> str:
    """The path, relative to the working directory if it is below it."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename


def _is_user_code(filename: str) -> bool:
    return not filename.startswith(_HEADRACE) and not any(part in filename for part in _DRIVERS)
