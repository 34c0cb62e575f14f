"""Checks that no other user owns or can write to the directories of jars, which run as this user."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_FIRST_PERSON_UID = 1000
"""The lowest uid of a person; lower ones belong to system accounts."""
_OTHER_CACHE = "export HEADRACE_CACHE=<a directory of yours>, then headrace jars fetch"


def refuse_foreign(*directories: Path) -> None:
    """Raise ConfigError if another user owns a directory or can write to it: jars in it run as this user.

    Directories of root are accepted, as container images have them. Missing directories are ignored.
    """
    for directory in directories:
        try:
            found = directory.stat()
        except OSError:
            continue
        if found.st_uid not in (0, os.geteuid()):
            raise ConfigError(f"{directory} belongs to another user (uid {found.st_uid})", hint=_OTHER_CACHE)
        if found.st_mode & stat.S_IWOTH:
            raise ConfigError(
                f"{directory} can be written by every user", hint=f"chmod go-w {directory}, or {_OTHER_CACHE}"
            )
        if found.st_mode & stat.S_IWGRP and (others := _others_in(found.st_gid)):
            raise ConfigError(
                f"{directory} can be written by its group, and so by {', '.join(others[:3])}",
                hint=f"chmod go-w {directory}, or {_OTHER_CACHE}",
            )


def _others_in(group: int) -> list[str]:
    """Other users in a group, without root and system accounts.

    Mode 775 is usual if each user has a private group (umask 002), and in images whose user has the group root: those
    groups have no other members. If users cannot be listed (LDAP), no other members are found.
    """
    me = os.geteuid()
    try:
        listed = set(grp.getgrgid(group).gr_mem)
    except KeyError:
        listed = set()
    users = [user for user in pwd.getpwall() if user.pw_uid not in (0, me)]
    accepted = {user.pw_name for user in pwd.getpwall() if user.pw_uid in (0, me)}
    primary = {user.pw_name for user in users if user.pw_gid == group and user.pw_uid >= _FIRST_PERSON_UID}
    return sorted((listed - accepted) | primary)
