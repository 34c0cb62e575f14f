"""Parses client options: a table, or a Java properties file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.support.environment import expand_environment
from headrace.support.pipeline_folder import resolve_path

_PAIR = re.compile(r"((?:\\.|[^\\=:\s])*)\s*(?:[=:]\s*)?(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


class FileOptions(dict[str, str]):
    """Options from a file that other programs may use, too: names that only those know are allowed."""


def parse_options(options: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, str]:
    """The options from a table, or from the file at a path."""
    if options is None:
        return {}
    if isinstance(options, FileOptions):  # the options of another source, which were parsed before
        return options
    if isinstance(options, str) and "=" in options:
        raise ConfigError(
            "options=…: expected a table or the path of a file, got a text with an = in it",  # it may be a password
            hint='options={"security.protocol": "SSL"}, or options="client.properties"',
        )
    if isinstance(options, str | os.PathLike):
        return FileOptions(read_properties(resolve_path(options)))
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"options=…: expected a table of names and values, or the path of a file, got {type(options).__name__}",
            hint='options={"security.protocol": "SSL"}, or options="client.properties"',
        )
    return {name: _with_path(name, value) for name, value in flatten(options)}


def _with_path(name: str, value: str) -> str:
    """Resolve paths such as `ssl.truststore.location` against the folder of the pipeline's file, like all paths."""
    is_path = name.endswith(".location") or name == "sasl.kerberos.keytab"
    return str(resolve_path(value)) if is_path and value != "probe" else value


def read_properties(path: Path) -> dict[str, str]:
    """The options in a file. `${NAME}` in a value is replaced by the environment variable."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the options in {path} cannot be read: {error.strerror}; looked in {Path.cwd()}",
            hint='options="client.properties", with a line such as security.protocol=SSL',
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8", hint="write other characters as \\u00e4") from error
    return {name: _with_path(name, expand_environment(value)) for name, value in parse_properties(text).items()}


def parse_properties(text: str) -> dict[str, str]:
    """Parse the syntax of Java's properties: comments, continued lines, escapes."""
    found: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for raw in lines:
        line = raw.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _is_continued(line):
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        pair = _PAIR.fullmatch(line)
        assert pair is not None  # it matches any text
        found[_unescape(pair[1])] = _unescape(pair[2])
    return found


def _is_continued(line: str) -> bool:
    """Whether the line ends with an unescaped backslash."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _ESCAPES.get(m[2], m[2]), text)


def flatten(options: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return names with dots and text values: TOML parses `security.protocol = "SSL"` as a nested table."""
    pairs: list[tuple[str, str]] = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            pairs += flatten(value, f"{prefix}{name}.")
        elif value is None:
            raise ConfigError(f"the option {prefix}{name} is None", hint="is an environment variable missing?")
        else:
            pairs.append((f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)))
    return pairs
