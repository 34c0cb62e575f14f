"""Which files count: said by manifests, one small object per batch. Values and decisions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from headrace.types import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable

_MERGED = re.compile(r"merged-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that counts: its name below the root, and its bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a batch, or of a merge of batches, which then stands for all that it `replaces`.

    `replaces` names also what the replaced had replaced themselves: a manifest that is published late, by a run that
    was thought dead, must stay without effect for ever.
    """

    name: str
    rows: int
    files: tuple[DataFile, ...]
    batch: Batch | None = None
    replaces: frozenset[str] = frozenset()
    published: float = field(default=0.0, compare=False)
    """When the object was written, as the place where it is kept has it."""

    def to_json(self) -> bytes:
        document = {
            "format": 1,
            "name": self.name,
            "rows": self.rows,
            "batch": json.loads(self.batch.to_json()) if self.batch else None,
            "files": [{"path": file.path, "size": file.size} for file in self.files],
            "replaces": sorted(self.replaces),
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, published: float = 0.0) -> Self:
        raw: dict[str, Any] = json.loads(data)
        if raw["format"] != 1:
            raise ValueError(f"a manifest of format {raw['format']}, which this version does not know")
        return cls(
            name=raw["name"],
            rows=raw["rows"],
            files=tuple(DataFile(file["path"], file["size"]) for file in raw["files"]),
            batch=Batch.from_json(json.dumps(raw["batch"])) if raw["batch"] else None,
            replaces=frozenset(raw["replaces"]),
            published=published,
        )


@dataclass(frozen=True, slots=True)
class Sorted:
    """Manifests by what they are worth."""

    visible: tuple[Manifest, ...]
    hidden: tuple[Manifest, ...]
    """Still there, though a merge stands for them: for readers that have listed their files before."""
    replaced: dict[str, Manifest]
    """Names that no longer count, each with the merge that stands for it; their manifests may be gone already."""
    rejected: tuple[Manifest, ...]
    """Merges that came second: another had replaced some of the same batches. They never count."""


def is_merge(name: str) -> bool:
    """Whether a manifest's name is that of a merge. A batch's name ends in a longer number."""
    return _MERGED.fullmatch(name) is not None


def sort(manifests: Iterable[Manifest]) -> Sorted:
    """Tell what is visible.

    Two compactions may have merged the same batches at once, since an object store has no lock. The first to be
    published wins, and it stays so whatever is published later.
    """
    manifests = sorted(manifests, key=lambda manifest: (manifest.published, manifest.name))
    replaced: dict[str, Manifest] = {}
    rejected = []
    for manifest in manifests:
        taken = {replaced[name].name for name in manifest.replaces if name in replaced}
        if taken <= manifest.replaces:
            replaced |= dict.fromkeys(manifest.replaces, manifest)
        else:
            rejected.append(manifest)
    valid = [manifest for manifest in manifests if manifest not in rejected]
    return Sorted(
        visible=tuple(manifest for manifest in valid if manifest.name not in replaced),
        hidden=tuple(manifest for manifest in valid if manifest.name in replaced),
        replaced=replaced,
        rejected=tuple(rejected),
    )
