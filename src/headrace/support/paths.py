"""The directories of Headrace on this machine: a cache that may be deleted, and state that must be kept."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

import platformdirs

from headrace.support.durable import sync


def cache_directory() -> Path:
    """The directory for downloads and checksums. `HEADRACE_CACHE` overrides it."""
    return Path(os.environ.get("HEADRACE_CACHE") or platformdirs.user_cache_dir("headrace"))


def state_directory() -> Path:
    """The directory for default offset stores and running dev servers. `HEADRACE_STATE` overrides it."""
    return Path(os.environ.get("HEADRACE_STATE") or platformdirs.user_state_dir("headrace"))


def private_directory(path: Path) -> Path:
    """Create `path` and its missing parents for this user alone (mode 700).

    A directory that exists keeps its mode, except in the state directory: earlier versions left those open to others.
    """
    path = path.absolute()
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]  # mkdir fails on a file
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)  # it will hold offsets and rows, so its entry must survive a power failure
    is_own = state_directory().absolute() in path.parents or path == Path(platformdirs.user_state_dir("headrace"))
    if is_own and path.stat().st_uid == os.geteuid():
        path.chmod(0o700)
    return path


def private_file(path: Path) -> None:
    """Create an empty file that only this user can read and write (mode 600). A file that exists is left alone."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def obstacle(path: Path) -> str | None:
    """Why this user can neither write to `path`, a file or a directory, nor create it; None if the user can."""
    path = path.absolute()
    # Not Path.exists, which raises if a directory on the path may not be entered.
    nearest = next(parent for parent in (path, *path.parents) if os.path.exists(parent))  # noqa: PTH110
    if nearest != path and not nearest.is_dir():
        return f"{nearest} is not a directory"
    if not os.access(nearest, os.W_OK | os.X_OK if nearest.is_dir() else os.W_OK):
        return f"this user may not write {nearest}"
    return None


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read and write, whatever its previous mode."""
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)


def stored_secret(path: Path) -> str:
    """The secret in a file with mode 600, generated if the file does not exist. It needs no encoding in a URL."""
    if not path.exists():
        private_directory(path.parent)
        draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        write_private(draft, secrets.token_urlsafe(32))
        with suppress(FileExistsError):  # link() creates the complete file, and never replaces that of another process
            os.link(draft, path)
        draft.unlink()
    return path.read_text(encoding="utf-8")
