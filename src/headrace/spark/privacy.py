"""What keeps other users of a machine out of a Spark that runs on it alone: a secret, and a directory of mode 700."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from headrace.errors import ConfigError
from headrace.spark import task_retries

_SECRET = "_SPARK_AUTH_SECRET"  # noqa: S105, the name of a variable


def settings(master: str) -> dict[str, str]:
    """Settings for a Spark on this machine; for a cluster only the secret that `headrace dev env` exports."""
    if task_retries.is_local(master):
        return {"spark.authenticate": "true", **_local_directory()}  # Spark generates a secret
    if master.startswith("local-cluster"):
        return {
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_urlsafe(32),
            **_local_directory(),
        }
    if master.startswith("spark://") and (secret := os.environ.get(_SECRET)):
        # Executors look for it there by themselves, and drivers do not.
        return {"spark.authenticate": "true", "spark.authenticate.secret": secret}
    return {}


def _local_directory() -> dict[str, str]:
    return {} if "SPARK_LOCAL_DIRS" in os.environ else {"spark.local.dir": str(scratch_directory())}


def scratch_directory() -> Path:
    """For Spark's temporary files, which it removes itself: some would be readable by all users in /tmp.

    One for all runs of a user, so that a run that is killed leaves no directory of its own.
    """
    return owned_directory(
        Path(tempfile.gettempdir()) / f"headrace-{os.geteuid()}", hint="export TMPDIR=<a directory of yours>"
    )


def owned_directory(path: Path, *, hint: str) -> Path:
    """Create a directory that only this user can enter (mode 700). ConfigError if it belongs to somebody else."""
    with suppress(FileExistsError):  # it is looked at next
        path.mkdir(mode=0o700, parents=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigError(f"{path} is not a directory of this user", hint=hint)
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path
