"""Command lines and configuration files of servers that run in a JVM."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.jars import java, pyspark_install

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# One garbage collector thread and only the C1 compiler: several servers share the few cores of a laptop.
SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def command(main: str, *arguments: str, jars: Iterable[Path], heap: str, flags: Iterable[str] = ()) -> list[str]:
    """The command that runs the class `main` with `jars` (or folders) as its class path."""
    classpath = os.pathsep.join(str(jar) for jar in jars)
    return [str(java.path()), *SMALL_JVM, f"-Xmx{heap}", *flags, "-cp", classpath, main, *arguments]


def run_source(source: Path, *arguments: str, jars: Iterable[Path], heap: str, flags: Iterable[str] = ()) -> list[str]:
    """The command that runs the class in `source`. Spark's compiler compiles it at start: a Java runtime has none."""
    compiler = from_spark({"janino", "commons-compiler"}, source.stem)
    main = "org.codehaus.janino.SimpleCompiler"
    return command(main, str(source), source.stem, *arguments, jars=[*jars, *compiler], heap=heap, flags=flags)


def from_spark(needed: Iterable[str], server: str) -> list[Path]:
    """Jars that pyspark ships, by name. Raises ConfigError if one is missing."""
    names = sorted(needed)
    shipped = {
        pyspark_install.split_version(jar.name)[0]: jar for jar in (pyspark_install.folder() / "jars").glob("*.jar")
    }
    if missing := [name for name in names if name not in shipped]:
        raise ConfigError(
            f"this pyspark does not ship what {server} needs: {', '.join(missing)}",
            hint=f"pip install --force-reinstall pyspark=={pyspark_install.version()}",
        )
    return [shipped[name] for name in names]


def properties(values: Mapping[str, str | int]) -> str:
    """Settings in Java's properties format, which is ASCII with escapes."""
    return "".join(f"{key}={_escaped(str(value))}\n" for key, value in values.items())


def _escaped(text: str) -> str:
    out = []
    for character in text.replace("\\", "\\\\").replace("\n", "\\n"):
        units = character.encode("utf-16-be")
        out.append(
            character
            if character.isascii()
            else "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
        )
    return "".join(out)
