"""Spark's settings in a file of mode 600 instead of arguments, which every user of a machine can read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.support.paths import write_private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FILE, _DEFAULTS = "--properties-file", "--load-spark-defaults"
_ESCAPED = str.maketrans(
    {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"} | {sign: f"\\{sign}" for sign in "\\=:#! "}
)


def arguments(settings: Mapping[str, str], given: Sequence[str], file: Path) -> list[str]:
    """The arguments of spark-submit: `settings` by way of `file`, which is written here, and what a user has `given`.

    A properties file of the user's is read first, so that `settings` win, as they would as arguments.
    """
    before, rest = _taken(given)
    text = _read(before) if before else ""
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items() if name.startswith("spark.")]
    write_private(file, "\n".join([text, *lines]))
    # Spark reads its own spark-defaults.conf only where no other file is named.
    return [_FILE, str(file), *([] if before or _DEFAULTS in rest else [_DEFAULTS]), *rest]


def _taken(given: Sequence[str]) -> tuple[str | None, list[str]]:
    """The properties file among the arguments, and the others."""
    rest = list(given)
    for place, word in enumerate(rest):
        if word == _FILE and place + 1 < len(rest):
            return rest[place + 1], rest[:place] + rest[place + 2 :]
        if word.startswith(f"{_FILE}="):
            return word.partition("=")[2], rest[:place] + rest[place + 1 :]
    return None, rest


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"PYSPARK_SUBMIT_ARGS names a properties file that cannot be read: {file}", hint="unset PYSPARK_SUBMIT_ARGS"
        ) from error


def _escaped(text: str) -> str:
    return text.translate(_ESCAPED)
