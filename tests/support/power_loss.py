"""Simulates disks after a power failure: unsynced changes may be lost, in any combination of directories."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.support import crashpoints

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Tree = dict[str, bytes | None]
"""The content of a disk, by path: the bytes of a file, or None if they are lost. A directory ends with a slash."""


@dataclass(frozen=True)
class Point:
    """The disk at one moment: the entries of each directory, now and when it was last synced."""

    label: str
    root: int
    live: Mapping[int, Mapping[str, int]]
    synced: Mapping[int, Mapping[str, int]]
    files: Mapping[int, bytes]
    """The bytes of each file when it was last synced."""

    def disks(self) -> Iterator[Tree]:
        """All disks that a power failure may leave at this moment."""
        changed = [one for one in self.live if self.live[one] != self.synced.get(one, {})]
        assert len(changed) <= 12, "too many combinations"
        for kept in product((False, True), repeat=len(changed)):
            persisted = {one for one, there in zip(changed, kept, strict=True) if there}
            tree: Tree = {}
            self._fill(tree, "", self.root, persisted)
            yield tree

    def _fill(self, tree: Tree, path: str, directory: int, persisted: set[int]) -> None:
        listed = self.live[directory] if directory in persisted else self.synced.get(directory, {})
        for name, child in listed.items():
            if child in self.live or child in self.synced:
                tree[f"{path}{name}/"] = b""
                self._fill(tree, f"{path}{name}/", child, persisted)
            else:
                tree[f"{path}{name}"] = self.files.get(child)


class Recorder:
    """Records what is synced below a directory. All that exists at the start counts as synced."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers: dict[int, int] = {}
        self._next = 0
        self._synced: dict[int, dict[str, int]] = {}
        self._files: dict[int, bytes] = {}
        self.points: list[Point] = []
        for place, _, names in os.walk(root):
            self.synced(Path(place))
            for name in names:
                self.synced(Path(place, name))

    def synced(self, path: Path) -> None:
        if not path.is_relative_to(self._root):
            return
        if path.is_dir():
            self._synced[self._number(path.stat())] = self._listed(path)
        else:
            self._files[self._number(path.stat())] = path.read_bytes()

    def removed(self, path: Path) -> None:
        """Forget the inode of a removed file, because another file may use it again."""
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) or found.st_nlink == 1:
            self._numbers.pop(found.st_ino, None)

    def note(self, label: str) -> None:
        live = {self._number(Path(place).stat()): self._listed(Path(place)) for place, *_ in os.walk(self._root)}
        root = self._number(self._root.stat())
        self.points.append(Point(label, root, live, dict(self._synced), dict(self._files)))

    def _listed(self, directory: Path) -> dict[str, int]:
        return {entry.name: self._number(entry.lstat()) for entry in directory.iterdir()}

    def _number(self, found: os.stat_result) -> int:
        if found.st_ino not in self._numbers:
            self._next += 1
            self._numbers[found.st_ino] = self._next
        return self._numbers[found.st_ino]


@contextmanager
def recorded(root: Path) -> Iterator[Recorder]:
    """Within the block, each call that changes or syncs a directory, and each crash point, records a point."""
    recorder = Recorder(root)
    with pytest.MonkeyPatch.context() as patched:

        def point(name: str) -> None:
            call: Any = getattr(os, name)

            def wrapped(*arguments: Any, **more: Any) -> Any:
                recorder.note(f"before {name}")
                if name in ("unlink", "rmdir", "remove"):
                    recorder.removed(_path(arguments[0], more.get("dir_fd")))
                answer = call(*arguments, **more)
                if name in ("fsync", "fdatasync"):
                    recorder.synced(_path(arguments[0], None))
                recorder.note(f"after {name}")
                return answer

            patched.setattr(os, name, wrapped)

        for name in ("fsync", "fdatasync", "rename", "replace", "link", "mkdir", "unlink", "remove", "rmdir"):
            point(name)
        crashpoints.install(recorder.note)
        try:
            yield recorder
        finally:
            crashpoints.install(None)


def _path(given: Any, directory: int | None) -> Path:
    if isinstance(given, int):
        return Path(f"/proc/self/fd/{given}").readlink()
    return Path(given) if directory is None else Path(f"/proc/self/fd/{directory}").readlink() / given
