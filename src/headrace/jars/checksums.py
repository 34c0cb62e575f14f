"""SHA-256 checksums of all files that Headrace fetches: pinned in this package, compared after a fetch and at load."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PINS = Path(__file__).with_name("checksums.txt")
"""Lines in the format of `sha256sum`: `sha256sum -c` in the cache directory of the jars reads them, too."""
_STAMP = ".verified"


def pinned(bundle: str) -> Mapping[str, str] | None:
    """The files that a bundle (name and version) may have, with their SHA-256; None for one that is not listed."""
    return _pins().get(bundle)


@cache
def _pins() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in PINS.read_text(encoding="utf-8").splitlines():
        digest, _, path = line.partition("  ")
        bundle, _, name = path.partition("/")
        found.setdefault(bundle, {})[name] = digest
    return found


def unpinned(bundle: str, names: Iterable[str]) -> list[str]:
    """Those of `names` that a listed bundle should not have."""
    pins = pinned(bundle)
    return [] if pins is None else sorted(name for name in names if name not in pins)


def mismatches(bundle: str, digests: Mapping[str, str]) -> list[str]:
    """The files whose SHA-256 differs from the pinned one; one line each."""
    pins = pinned(bundle) or {}
    return [
        _mismatch(name, digests[name], pins[name])
        for name in sorted(digests)
        if digests[name] != pins.get(name, digests[name])
    ]


def problems(directory: Path, recorded: Mapping[str, str]) -> list[str]:
    """Problems with the files of a fetch, one line each: they must match the pins, or else the record of the fetch."""
    expected = {**recorded, **{name: pin for name, pin in (pinned(directory.name) or {}).items() if name in recorded}}
    lines = [f"{name}: no checksum is pinned for it" for name in unpinned(directory.name, recorded)]
    for name in sorted(expected):
        try:
            actual = sha256(directory / name)
        except OSError as error:
            lines.append(f"{name}: {error.strerror}")
        else:
            if actual != expected[name]:
                lines.append(_mismatch(name, actual, expected[name]))
    return lines


def changed_files(directory: Path, recorded: Mapping[str, str]) -> list[str]:
    """Like `problems`, but does not read files again that have not changed since they were verified."""
    stamps = _file_stamps(directory, recorded)
    if stamps is not None and _read_stamp(directory) == stamps:
        return []
    found = problems(directory, recorded)
    if not found and stamps is not None:
        _write_stamp(directory, stamps)
    return found


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mismatch(name: str, actual: str, expected: str) -> str:
    return f"{name}: sha256 is {actual[:12]}…, expected {expected[:12]}…"


def _file_stamps(directory: Path, recorded: Mapping[str, str]) -> dict[str, list[object]] | None:
    """The checksum, inode, size and times of each file. Only the kernel can set the change time."""
    pins = pinned(directory.name) or {}
    try:
        found = {name: (directory / name).stat() for name in recorded}
    except OSError:
        return None
    return {
        name: [pins.get(name, recorded[name]), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        for name, stat in sorted(found.items())
    }


def _read_stamp(directory: Path) -> object:
    try:
        return json.loads((directory / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_stamp(directory: Path, stamps: Mapping[str, list[object]]) -> None:
    draft = directory / f"{_STAMP}-{os.getpid()}"
    try:
        draft.write_text(json.dumps(stamps), encoding="utf-8")
        draft.replace(directory / _STAMP)
    except OSError:
        return  # a cache of root, or on a read-only disk: verify again at the next start
