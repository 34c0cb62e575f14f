"""Passes Spark's settings in a file of mode 600: arguments are visible to all users of the machine."""

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


def write_arguments(settings: Mapping[str, str], user_arguments: Sequence[str], file: Path) -> list[str]:
    """Write `settings` to `file`, and return the arguments of spark-submit with it and those of the user.

    The content of a properties file of the user comes first, so that `settings` win, as they would as arguments.
    """
    user_file, rest = _split_properties_file(user_arguments)
    text = _read(user_file) if user_file else ""
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items() if name.startswith("spark.")]
    write_private(file, "\n".join([text, *lines]))
    # Spark reads its own spark-defaults.conf only if no other file is given.
    return [_FILE, str(file), *([] if user_file or _DEFAULTS in rest else [_DEFAULTS]), *rest]


def _split_properties_file(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The properties file of the user, and the other arguments."""
    rest = list(arguments)
    for index, word in enumerate(rest):
        if word == _FILE and index + 1 < len(rest):
            return rest[index + 1], rest[:index] + rest[index + 2 :]
        if word.startswith(f"{_FILE}="):
            return word.partition("=")[2], rest[:index] + rest[index + 1 :]
    return None, rest


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read the properties file of PYSPARK_SUBMIT_ARGS: {file}", hint="unset PYSPARK_SUBMIT_ARGS"
        ) from error


def _escaped(text: str) -> str:
    return text.translate(_ESCAPED)
