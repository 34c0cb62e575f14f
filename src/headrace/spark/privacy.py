"""Protects a local Spark from other users of the machine: by a secret, and directories of mode 700."""

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
        # Executors read the variable by themselves, drivers do not.
        return {"spark.authenticate": "true", "spark.authenticate.secret": secret}
    return {}


def _local_directory() -> dict[str, str]:
    return {} if "SPARK_LOCAL_DIRS" in os.environ else {"spark.local.dir": str(create_scratch_directory())}


def create_scratch_directory() -> Path:
    """Create the directory for Spark's temporary files, some of which would be readable by all users in /tmp.

    All runs of a user share it, so a killed run leaves no directory behind. Spark removes its files itself.
    """
    return create_private_directory(
        Path(tempfile.gettempdir()) / f"headrace-{os.geteuid()}", hint="export TMPDIR=<a directory of yours>"
    )


def create_private_directory(path: Path, *, hint: str) -> Path:
    """Create a directory with mode 700. ConfigError if it belongs to another user."""
    with suppress(FileExistsError):  # checked below
        path.mkdir(mode=0o700, parents=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ConfigError(f"{path} is not a directory of this user", hint=hint)
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path
