"""Unpacks programs that are distributed as an archive instead of as jars."""

from __future__ import annotations

import shutil
import tarfile
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.jars import ivy

if TYPE_CHECKING:
    from pathlib import Path


def unpack(folder: Path) -> list[Path]:
    """Extract the files of each archive in `folder` into that folder, and delete the archive. Links are left out."""
    return [file for archive in sorted(folder.glob("*.tar.gz")) for file in _unpack_archive(archive)]


def _unpack_archive(archive: Path) -> list[Path]:
    # Not extractall(): the filters that make extractall() safe are missing in the first releases of Python 3.11.
    files = []
    try:
        with tarfile.open(archive) as members:
            for member in members:
                content = members.extractfile(member) if member.isfile() else None
                if content is None:
                    continue
                file = archive.parent / member.name
                if ".." in file.parts or not file.is_relative_to(archive.parent):
                    raise ConfigError(
                        f"{archive.name} cannot be unpacked: {member.name} is a path outside its directory"
                    )
                file.parent.mkdir(parents=True, exist_ok=True)
                with content, file.open("wb") as out:
                    shutil.copyfileobj(content, out)
                files.append(file)
    except (tarfile.TarError, EOFError) as error:
        raise ConfigError(f"{archive.name} cannot be unpacked: {error}", hint=ivy.RETRY) from error
    archive.unlink()
    return files
