"""Bundles of jars that are used together: the connector's, Avro's, and those of each server."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from headrace.jars import pyspark_install
from headrace.jars.ivy import Artifact
from headrace.support import paths

if TYPE_CHECKING:
    from pathlib import Path


_JARS, NATIVES = ("jar", "bundle"), ("so", "dylib")
CONNECTOR = f"spark-sql-kafka-0-10_{pyspark_install.SCALA}"
AVRO = f"spark-avro_{pyspark_install.SCALA}"
_SPARK = "org.apache.spark"
# Some mirrors lack artifacts; these versions were run together, on Spark 4.2.0.
PROVEN = "4.2.0"
_PINNED_AVRO = Artifact(_SPARK, AVRO, "4.1.1")
_PINNED_TOKENS = Artifact(_SPARK, f"spark-token-provider-kafka-0-10_{pyspark_install.SCALA}", "4.0.0")


@dataclass(frozen=True, slots=True)
class ResolutionAttempt:
    """One way to resolve a bundle. `alternative` describes how it differs from the preferred one."""

    artifacts: tuple[Artifact, ...]
    overrides: tuple[Artifact, ...] = ()
    alternative: str | None = None


@dataclass(frozen=True, slots=True)
class Bundle:
    """Jars that are used together, and the resolution attempts in the order in which they are made.

    `natives`: it includes native libraries that the jars depend on, in the same folder.
    """

    name: str
    version: str
    attempts: tuple[ResolutionAttempt, ...]
    exclude_shipped: bool = False
    natives: bool = False

    @classmethod
    def of(cls, name: str, *artifacts: Artifact, exclude_shipped: bool = False, natives: bool = False) -> Bundle:
        """A bundle with a single resolution attempt, in the version of its first artifact."""
        return cls(name, artifacts[0].version, (ResolutionAttempt(artifacts),), exclude_shipped, natives)

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the artifacts, as Maven calls them."""
        archived = {a.type for attempt in self.attempts for a in attempt.artifacts if a.archive}
        return (*_JARS, *(NATIVES if self.natives else ()), *sorted(archived))

    @property
    def directory(self) -> Path:
        return root() / f"{self.name}-{self.version}"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def root() -> Path:
    return paths.cache_directory().absolute() / "jars"


def connector_bundle(pyspark: str | None = None) -> Bundle:
    """The Spark-Kafka connector for a pyspark version, by default the installed one."""
    version = pyspark or pyspark_install.version()
    exact = Artifact(_SPARK, CONNECTOR, version)
    attempts = [
        ResolutionAttempt((exact,)),
        ResolutionAttempt((exact,), (_PINNED_TOKENS,), f"token provider {_PINNED_TOKENS.version} instead of {version}"),
    ]
    release = _release(version)
    first_of_minor = ".".join(str(part) for part in (*release[:2], 0))  # an untested combination, doctor warns about it
    fallback = PROVEN if release > _release(PROVEN) else first_of_minor
    if fallback != version:
        other = Artifact(_SPARK, CONNECTOR, fallback)
        label = f"connector {fallback} instead of {version}"
        attempts += [
            ResolutionAttempt((other,), (), label),
            ResolutionAttempt((other,), (_PINNED_TOKENS,), f"{label}, token provider {_PINNED_TOKENS.version}"),
        ]
    return Bundle("spark-kafka", version, tuple(attempts), exclude_shipped=True)


def avro_bundle(pyspark: str | None = None) -> Bundle:
    """The jars of Spark's `to_avro` and `from_avro` for a pyspark version, by default the installed one."""
    version = pyspark or pyspark_install.version()
    exact = Artifact(_SPARK, AVRO, version)
    attempts = [ResolutionAttempt((exact,))]
    if exact != _PINNED_AVRO:
        attempts.append(ResolutionAttempt((_PINNED_AVRO,), (), f"Avro {_PINNED_AVRO.version} instead of {version}"))
    return Bundle("spark-avro", version, tuple(attempts), exclude_shipped=True)


def bundles() -> list[Bundle]:
    """The bundles that a session needs in addition to pyspark."""
    return [connector_bundle(), avro_bundle()]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in takewhile(str.isdigit, version.split(".")[:3]))
