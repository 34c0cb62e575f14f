"""Maven artifacts in a per-user cache: fetched once through pyspark's own Ivy, checked, then used offline."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import paths
from headrace.errors import ConfigError
from headrace.paths import private_directory
from headrace.spark import archives, checksums, installation, ivy
from headrace.spark.ivy import Artifact
from headrace.spark.privacy import refuse_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Progress = Callable[[str], None]

__all__ = [
    "Artifact",
    "Bundle",
    "Manifest",
    "Route",
    "avro_bundle",
    "bundles",
    "cached",
    "connector",
    "connector_bundle",
    "fetch",
    "unpinned",
    "verify",
]

MANIFEST = "manifest.json"
UNPINNED = "HEADRACE_UNPINNED_JARS"
"""`refuse`: what has no pinned checksums is not fetched. Else it is, with a warning: Spark releases faster than we."""
_JARS, _NATIVES = ("jar", "bundle"), ("so", "dylib")
CONNECTOR = f"spark-sql-kafka-0-10_{installation.SCALA}"
AVRO = f"spark-avro_{installation.SCALA}"
_SPARK = "org.apache.spark"
# Some mirrors have holes; these were run together, on Spark 4.2.0.
PROVEN = "4.2.0"
_PINNED_AVRO = Artifact(_SPARK, AVRO, "4.1.1")
_PINNED_TOKENS = Artifact(_SPARK, f"spark-token-provider-kafka-0-10_{installation.SCALA}", "4.0.0")


@dataclass(frozen=True, slots=True)
class Route:
    """One way to resolve a bundle. `alternative` says how it differs from what was really wanted."""

    artifacts: tuple[Artifact, ...]
    overrides: tuple[Artifact, ...] = ()
    alternative: str | None = None


@dataclass(frozen=True, slots=True)
class Bundle:
    """Jars that are used together, and the routes to them in the order they are tried.

    `natives`: with the libraries in machine code that they depend on, which lie beside them.
    """

    name: str
    version: str
    routes: tuple[Route, ...]
    exclude_shipped: bool = False
    natives: bool = False

    @classmethod
    def of(cls, name: str, *artifacts: Artifact, exclude_shipped: bool = False, natives: bool = False) -> Bundle:
        """A bundle with one route, in the version of its first artifact."""
        return cls(name, artifacts[0].version, (Route(artifacts),), exclude_shipped, natives)

    @property
    def types(self) -> tuple[str, ...]:
        """The types of artifacts, in Maven's words."""
        archived = {a.type for route in self.routes for a in route.artifacts if a.archive}
        return (*_JARS, *(_NATIVES if self.natives else ()), *sorted(archived))

    @property
    def directory(self) -> Path:
        return root() / f"{self.name}-{self.version}"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a finished fetch left in its folder."""

    directory: Path
    name: str
    version: str
    resolved: tuple[str, ...]
    alternative: str | None
    fetched: str
    sha256: dict[str, str]

    @property
    def jars(self) -> list[Path]:
        return [self.directory / name for name in sorted(self.sha256) if name.endswith(".jar")]

    @classmethod
    def read(cls, directory: Path) -> Manifest | None:
        """The manifest in `directory`; None when there is none that can be read."""
        try:
            raw: dict[str, Any] = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
            resolved = tuple(raw.pop("resolved"))
            return cls(directory=directory, resolved=resolved, **raw)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, directory: Path) -> None:
        raw = {
            "name": self.name,
            "version": self.version,
            "resolved": self.resolved,
            "alternative": self.alternative,
            "fetched": self.fetched,
            "sha256": self.sha256,
        }
        (directory / MANIFEST).write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def root() -> Path:
    return paths.cache_directory().absolute() / "jars"


def cached() -> list[Manifest]:
    """Every finished fetch in the cache, whether its files are sound or not."""
    found = (Manifest.read(path.parent) for path in sorted(root().glob(f"[!.]*/{MANIFEST}")))
    return [manifest for manifest in found if manifest]


def verify(manifest: Manifest) -> list[str]:
    """What is wrong with the files of a fetch, one line each; empty when they are as they were fetched."""
    return checksums.problems(manifest.directory, manifest.sha256)


def unpinned(bundle: Bundle) -> str | None:
    """What to say of a bundle that this release of Headrace has no checksums of; None if it has."""
    if checksums.pinned(bundle.directory.name) is not None:
        return None
    return (
        f"{bundle}: this release of Headrace has no checksums of it: what the registry sends first is taken as it is,"
        " and compared with that from then on"
    )


def silent(line: str) -> None:
    """Progress for callers that have nobody to tell."""


def fetch(bundle: Bundle, progress: Progress = silent) -> list[Path]:
    """The jars of `bundle`, from the cache when they are there and sound, else from the registry.

    Neither java nor the network is touched when the cache has them. Safe to call from several processes at
    once, and to kill: a folder appears in the cache complete or not at all.
    Raises ConfigError (no java, not in the registry, cache not writable) or RetriableError (no network).
    """
    refuse_foreign(bundle.directory, root(), root().parent)
    manifest = Manifest.read(bundle.directory)
    if manifest and not checksums.changed(manifest.directory, manifest.sha256):
        return manifest.jars
    try:
        private_directory(root())
        with _lock(root() / f".{bundle.directory.name}.lock", bundle, progress):
            manifest = Manifest.read(bundle.directory)  # another process may have fetched it while we waited
            problems = verify(manifest) if manifest else []
            if manifest and not problems:
                return manifest.jars
            for left in root().glob(f".{bundle.directory.name}-*"):  # of a fetch that was killed: we hold the lock
                shutil.rmtree(left, ignore_errors=True)
            for problem in problems:
                progress(f"{bundle}: {problem}; fetching again")
            return _download(bundle, progress).jars
    except OSError as error:
        raise ConfigError(
            f"cannot keep jars in {root()}: {error}", hint="export HEADRACE_CACHE=<a folder you can write to>"
        ) from error


def connector_bundle(pyspark: str | None = None) -> Bundle:
    """The Spark-Kafka connector for a pyspark version, by default the installed one."""
    version = pyspark or installation.version()
    exact = Artifact(_SPARK, CONNECTOR, version)
    routes = [
        Route((exact,)),
        Route((exact,), (_PINNED_TOKENS,), f"token provider {_PINNED_TOKENS.version} instead of {version}"),
    ]
    release = _release(version)
    first_of_line = ".".join(str(part) for part in (*release[:2], 0))  # not run by us: doctor warns
    near = PROVEN if release > _release(PROVEN) else first_of_line
    if near != version:
        other = Artifact(_SPARK, CONNECTOR, near)
        said = f"connector {near} instead of {version}"
        routes += [
            Route((other,), (), said),
            Route((other,), (_PINNED_TOKENS,), f"{said}, token provider {_PINNED_TOKENS.version}"),
        ]
    return Bundle("spark-kafka", version, tuple(routes), exclude_shipped=True)


def avro_bundle(pyspark: str | None = None) -> Bundle:
    """What Spark's functions `to_avro` and `from_avro` call, for a pyspark version, by default the installed one."""
    version = pyspark or installation.version()
    exact = Artifact(_SPARK, AVRO, version)
    routes = [Route((exact,))]
    if exact != _PINNED_AVRO:
        routes.append(Route((_PINNED_AVRO,), (), f"Avro {_PINNED_AVRO.version} instead of {version}"))
    return Bundle("spark-avro", version, tuple(routes), exclude_shipped=True)


def bundles() -> list[Bundle]:
    """What a session needs beside pyspark."""
    return [connector_bundle(), avro_bundle()]


def connector(progress: Progress = silent) -> list[Path]:
    """The jars that a session needs for Kafka and Avro, for the installed pyspark, without those that pyspark ships."""
    return [jar for bundle in bundles() for jar in fetch(bundle, progress)]


def _download(bundle: Bundle, progress: Progress) -> Manifest:
    shipped = installation.shipped() if bundle.exclude_shipped else frozenset()
    with tempfile.TemporaryDirectory(prefix=f".{bundle.directory.name}-", dir=root()) as scratch:
        lacking = ""
        for number, route in enumerate(bundle.routes):
            if route.alternative:
                progress(f"{bundle}: {lacking}; trying {route.alternative}")
            into = Path(scratch) / f"jars-{number}"
            into.mkdir()
            asked = ivy.description(route.artifacts, route.overrides, shipped)
            missing = ivy.retrieve(
                asked,
                types=bundle.types,
                poms=not all(artifact.archive for artifact in route.artifacts),
                into=into,
                work=Path(scratch) / "ivy",
                label=str(bundle),
                progress=progress,
            )
            if missing:
                lacking = f"not in the registry: {', '.join(missing)}"
                continue
            manifest = _manifest(bundle, route, into, shipped)
            # What a registry adds to a bundle is not taken: a changed description could name any jar.
            if (warning := unpinned(bundle)) is not None:
                if os.environ.get(UNPINNED, "").lower() == "refuse":
                    raise ConfigError(warning, hint=f"pip install 'pyspark=={PROVEN}', or unset {UNPINNED}")
                progress(f"warning: {warning}")
            if unknown := checksums.unpinned(bundle.directory.name, manifest.sha256):
                lacking = f"no checksum is pinned for {', '.join(unknown)}"
                continue
            return _publish(manifest, into)
    raise ConfigError(
        f"{bundle} cannot be fetched, {lacking}",
        hint=f"export {ivy.SETTINGS}=<ivysettings.xml of a registry that has it>, then {ivy.RETRY}",
    )


def _manifest(bundle: Bundle, route: Route, into: Path, shipped: frozenset[str]) -> Manifest:
    files = archives.unpacked(into) or [
        f for f in sorted(into.glob("*.jar")) if installation.split_version(f.name)[0] not in shipped
    ]
    if not files:
        raise ConfigError(f"{bundle}: Ivy reported success and left no jar", hint=ivy.RETRY)
    files += [f for f in sorted(into.iterdir()) if f.suffix.removeprefix(".") in _NATIVES]
    found = {str(file.relative_to(into)): checksums.sha256(file) for file in files}
    if wrong := checksums.wrong(bundle.directory.name, found):
        raise ConfigError(
            f"{bundle}: the registry sent other files than the pinned ones: {'; '.join(wrong)}",
            hint=f"do not use this registry; {ivy.SETTINGS}=<ivysettings.xml of another>, then {ivy.RETRY}",
        )
    return Manifest(
        directory=bundle.directory,
        name=bundle.name,
        version=bundle.version,
        resolved=tuple(str(artifact) for artifact in (*route.artifacts, *route.overrides)),
        alternative=route.alternative,
        fetched=datetime.now(UTC).isoformat(timespec="seconds"),
        sha256=found,
    )


def _publish(manifest: Manifest, into: Path) -> Manifest:
    manifest.write(into)
    if manifest.directory.exists():  # damaged: rename does not replace a folder that has files
        shutil.rmtree(manifest.directory)
    into.rename(manifest.directory)
    return manifest


@contextmanager
def _lock(path: Path, bundle: Bundle, progress: Progress) -> Iterator[None]:
    """Held by the process that fetches; the kernel lets go of it when that process dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{bundle} is being fetched by another process; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in takewhile(str.isdigit, version.split(".")[:3]))
