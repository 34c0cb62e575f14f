"""Reads the jars and packages in Spark's settings, and checks whether they are compatible."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.jars import pyspark_install

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LISTS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath", "spark.executor.extraClassPath")
# Two versions of one of these in a JVM fail late and with misleading errors; most others are harmless.
_ONE_ONLY = (
    "kafka-clients",
    "spark-avro",
    "spark-sql-kafka-0-10",
    "spark-token-provider-kafka-0-10",
    "spark-streaming-kafka-0-10",
)


@dataclass(frozen=True, slots=True, order=True)
class JarReference:
    """A jar by name, with a separate Scala suffix, and the setting that names it."""

    name: str
    scala: str
    version: str
    source: str

    @classmethod
    def parse(cls, text: str, source: str) -> JarReference:
        """Parse a path or file name, or `org:name:version`."""
        parts = text.split(":")
        if len(parts) == 3 and not text.endswith(".jar"):
            full, version = parts[1], parts[2]
        else:
            full, version = pyspark_install.split_version(Path(text).name)
        name, _, scala = full.rpartition("_") if full.rpartition("_")[2].startswith("2.") else (full, "", "")
        return cls(name, scala, version, source)

    def __str__(self) -> str:
        suffix = f"_{self.scala}" if self.scala else ""
        return f"{self.name}{suffix} {self.version} ({self.source})"


def in_submit_arguments(arguments: str) -> list[JarReference]:
    """Jars named in PYSPARK_SUBMIT_ARGS: `--jars`, `--packages`, `--conf spark.jars=…`."""
    try:
        words = shlex.split(arguments)
    except ValueError:
        words = arguments.split()
    flat = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    settings = {}
    found = ""
    for flag, value in pairwise(flat):
        if flag in ("--jars", "--packages", "--driver-class-path"):
            found += f",{value}"
        elif flag in ("--conf", "-c"):
            key, _, given = value.partition("=")
            settings[key] = given
    return _parse_list(found, "PYSPARK_SUBMIT_ARGS") + in_settings(settings, "PYSPARK_SUBMIT_ARGS")


def in_defaults(text: str, source: str) -> list[JarReference]:
    """Jars named in a spark-defaults.conf: `key value` or `key=value` lines."""
    settings = {}
    for line in text.splitlines():
        words = line.strip().replace("=", " ", 1).split(None, 1)
        if len(words) == 2 and not words[0].startswith("#"):
            settings[words[0]] = words[1].strip()
    return in_settings(settings, source)


def in_settings(settings: Mapping[str, str], source: str) -> list[JarReference]:
    return [jar for key in _LISTS for jar in _parse_list(settings.get(key, ""), source)]


def referenced_jars() -> list[JarReference]:
    """All jars from the environment and spark-defaults.conf, and pyspark's own Kafka jars."""
    found = in_submit_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    defaults = configuration() / "spark-defaults.conf"
    if defaults.is_file():
        found += in_defaults(defaults.read_text(encoding="utf-8", errors="replace"), str(defaults))
    inside = pyspark_install.folder() / "jars"
    found += [JarReference.parse(jar.name, str(inside)) for jar in inside.glob("*kafka*.jar")]
    return found


def configuration() -> Path:
    """The folder that Spark reads its defaults from."""
    given = os.environ.get("SPARK_CONF_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("SPARK_HOME") or pyspark_install.folder()) / "conf"


def wrong_scala(jars: Iterable[JarReference]) -> list[JarReference]:
    """Jars built for another Scala version than that of this Spark."""
    return sorted(jar for jar in jars if jar.scala and jar.scala != pyspark_install.SCALA)


def clashes(jars: Iterable[JarReference]) -> list[list[JarReference]]:
    """Jars with several versions of which only one may be present."""
    groups: dict[str, list[JarReference]] = {name: [] for name in _ONE_ONLY}
    for jar in jars:
        if jar.name in groups:
            groups[jar.name].append(jar)
    return [sorted(group) for group in groups.values() if len({jar.version for jar in group}) > 1]


def _parse_list(text: str, source: str) -> list[JarReference]:
    """Parse a list separated by commas or, if it is a class path of jars, by colons."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    parts: list[str] = []
    for entry in entries:
        parts += entry.split(":") if ".jar:" in entry else [entry]
    return [JarReference.parse(part, source) for part in parts]
