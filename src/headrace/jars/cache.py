"""A per-user cache of Maven artifacts: fetched once through pyspark's own Ivy, verified, then used offline."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.jars import archives, checksums, ivy, pyspark_install
from headrace.jars.bundles import NATIVES, PROVEN, Bundle, ResolutionAttempt, bundles, root
from headrace.jars.ownership import refuse_foreign
from headrace.support.paths import private_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Progress = Callable[[str], None]

MANIFEST = "manifest.json"
UNPINNED = "HEADRACE_UNPINNED_JARS"
"""`refuse`: do not fetch jars without pinned checksums. By default they are fetched with a warning."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of a finished fetch in its folder."""

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
        """The manifest in `directory`; None if it is missing or unreadable."""
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


def manifests() -> list[Manifest]:
    """The manifests of all finished fetches in the cache, also of those with damaged files."""
    found = (Manifest.read(path.parent) for path in sorted(root().glob(f"[!.]*/{MANIFEST}")))
    return [manifest for manifest in found if manifest]


def verify(manifest: Manifest) -> list[str]:
    """Problems with the files of a fetch, one line each."""
    return checksums.problems(manifest.directory, manifest.sha256)


def unpinned_warning(bundle: Bundle) -> str | None:
    """A warning about a bundle for which this release of Headrace has no checksums; None if it has them."""
    if checksums.pinned(bundle.directory.name) is not None:
        return None
    return (
        f"{bundle}: this release of Headrace has no checksums for it; the first download is accepted unchecked,"
        " and later downloads must have the same checksums"
    )


def silent(line: str) -> None:
    """Ignore progress."""


def fetch(bundle: Bundle, progress: Progress = silent) -> list[Path]:
    """The jars of `bundle`, from the cache if they are complete and undamaged, otherwise from the registry.

    Uses neither Java nor the network if the cache has them. Several processes may call it at once, and be killed: a
    folder appears in the cache complete or not at all.
    Raises ConfigError (no Java, not in the registry, cache not writable) or RetriableError (no network).
    """
    refuse_foreign(bundle.directory, root(), root().parent)
    manifest = Manifest.read(bundle.directory)
    if manifest and not checksums.changed_files(manifest.directory, manifest.sha256):
        return manifest.jars
    try:
        private_directory(root())
        with _lock(root() / f".{bundle.directory.name}.lock", bundle, progress):
            manifest = Manifest.read(bundle.directory)  # another process may have fetched it meanwhile
            problems = verify(manifest) if manifest else []
            if manifest and not problems:
                return manifest.jars
            for leftover in root().glob(f".{bundle.directory.name}-*"):  # of a killed fetch: this one has the lock
                shutil.rmtree(leftover, ignore_errors=True)
            for problem in problems:
                progress(f"{bundle}: {problem}; fetching again")
            return _download(bundle, progress).jars
    except OSError as error:
        raise ConfigError(
            f"cannot keep jars in {root()}: {error}", hint="export HEADRACE_CACHE=<a folder you can write to>"
        ) from error


def connector(progress: Progress = silent) -> list[Path]:
    """The jars that a session needs for Kafka and Avro, for the installed pyspark, without those that pyspark ships."""
    return [jar for bundle in bundles() for jar in fetch(bundle, progress)]


def _download(bundle: Bundle, progress: Progress) -> Manifest:
    shipped = pyspark_install.shipped() if bundle.exclude_shipped else frozenset()
    with tempfile.TemporaryDirectory(prefix=f".{bundle.directory.name}-", dir=root()) as scratch:
        reason = ""
        for number, attempt in enumerate(bundle.attempts):
            if attempt.alternative:
                progress(f"{bundle}: {reason}; trying {attempt.alternative}")
            into = Path(scratch) / f"jars-{number}"
            into.mkdir()
            request = ivy.description(attempt.artifacts, attempt.overrides, shipped)
            missing = ivy.retrieve(
                request,
                types=bundle.types,
                poms=not all(artifact.archive for artifact in attempt.artifacts),
                into=into,
                work=Path(scratch) / "ivy",
                label=str(bundle),
                progress=progress,
            )
            if missing:
                reason = f"not in the registry: {', '.join(missing)}"
                continue
            manifest = _manifest(bundle, attempt, into, shipped)
            # Ignore artifacts that a registry adds to a bundle: a modified POM could name any jar.
            if (warning := unpinned_warning(bundle)) is not None:
                if os.environ.get(UNPINNED, "").lower() == "refuse":
                    raise ConfigError(warning, hint=f"pip install 'pyspark=={PROVEN}', or unset {UNPINNED}")
                progress(f"warning: {warning}")
            if unknown := checksums.unpinned(bundle.directory.name, manifest.sha256):
                reason = f"no checksum is pinned for {', '.join(unknown)}"
                continue
            return _publish(manifest, into)
    raise ConfigError(
        f"cannot fetch {bundle}: {reason}",
        hint=f"export {ivy.SETTINGS}=<ivysettings.xml of a registry that has it>, then {ivy.RETRY}",
    )


def _manifest(bundle: Bundle, attempt: ResolutionAttempt, into: Path, shipped: frozenset[str]) -> Manifest:
    files = archives.unpack(into) or [
        f for f in sorted(into.glob("*.jar")) if pyspark_install.split_version(f.name)[0] not in shipped
    ]
    if not files:
        raise ConfigError(f"{bundle}: Ivy reported success but downloaded no jar", hint=ivy.RETRY)
    files += [f for f in sorted(into.iterdir()) if f.suffix.removeprefix(".") in NATIVES]
    digests = {str(file.relative_to(into)): checksums.sha256(file) for file in files}
    if mismatches := checksums.mismatches(bundle.directory.name, digests):
        raise ConfigError(
            f"{bundle}: the registry sent files with wrong checksums: {'; '.join(mismatches)}",
            hint=f"do not use this registry; {ivy.SETTINGS}=<ivysettings.xml of another>, then {ivy.RETRY}",
        )
    return Manifest(
        directory=bundle.directory,
        name=bundle.name,
        version=bundle.version,
        resolved=tuple(str(artifact) for artifact in (*attempt.artifacts, *attempt.overrides)),
        alternative=attempt.alternative,
        fetched=datetime.now(UTC).isoformat(timespec="seconds"),
        sha256=digests,
    )


def _publish(manifest: Manifest, into: Path) -> Manifest:
    manifest.write(into)
    if manifest.directory.exists():  # damaged: rename does not replace a folder that has files
        shutil.rmtree(manifest.directory)
    into.rename(manifest.directory)
    return manifest


@contextmanager
def _lock(path: Path, bundle: Bundle, progress: Progress) -> Iterator[None]:
    """Hold the lock for a fetch; the kernel releases it when the process dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{bundle} is being fetched by another process; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
