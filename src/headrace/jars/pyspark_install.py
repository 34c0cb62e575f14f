"""Finds the pyspark on this machine and the jars that it ships, without importing it."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata, util
from pathlib import Path

from headrace.errors import ConfigError

SCALA = "2.13"  # every Spark 4 is built with it

# A version starts at the last hyphen before a dotted number: `kafka-0-10_2.13-4.0.0`, `zstd-jni-1.5.6-10`.
_DOTTED = re.compile(r"^(?P<name>.+)-(?P<version>\d+\.[\w.+]*(?:-[\w.+]+)*)$")
_PLAIN = re.compile(r"^(?P<name>.+?)-(?P<version>\d\w*)$")


def split_version(jar: str) -> tuple[str, str]:
    """Split `kafka-clients-3.9.2.jar` into `("kafka-clients", "3.9.2")`; the version of a jar without one is empty."""
    stem = jar.removesuffix(".jar")
    match = _DOTTED.match(stem) or _PLAIN.match(stem)
    return (match["name"], match["version"]) if match else (stem, "")


@cache
def folder() -> Path:
    """The folder of pyspark. Raises ConfigError if pyspark is not installed or ships no jars."""
    spec = util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("pyspark is not installed", hint="pip install 'pyspark>=4.0,<4.4'")
    found = Path(next(iter(spec.submodule_search_locations)))
    if not (found / "jars").is_dir():
        raise ConfigError(
            f"{found} has no jars folder: a pyspark without Spark (pyspark-client, or a source checkout)",
            hint="pip install --force-reinstall 'pyspark>=4.0,<4.4'",
        )
    return found


@cache
def version() -> str:
    """The version of the installed pyspark. Raises ConfigError if there is none."""
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError as error:
        raise ConfigError("pyspark is not installed", hint="pip install 'pyspark>=4.0,<4.4'") from error


def shipped() -> frozenset[str]:
    """The names, without versions, of the jars that pyspark ships."""
    return frozenset(split_version(jar.name)[0] for jar in (folder() / "jars").glob("*.jar"))


def ivy() -> Path:
    """The Ivy jar in pyspark: a complete Maven resolver with a main class."""
    found = sorted((folder() / "jars").glob("ivy-*.jar"))
    if not found:
        raise ConfigError(
            f"no ivy-*.jar in {folder() / 'jars'}: this pyspark is incomplete",
            hint=f"pip install --force-reinstall pyspark=={version()}",
        )
    return found[-1]
