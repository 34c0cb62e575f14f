"""Connects to Redis, translates its errors to Headrace's, and warns about settings that may lose data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.optional_imports import require
from headrace.support.redaction import masked
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONNECT_SECONDS, _ANSWER_SECONDS = 5, 10
# The first words of temporary errors.
_PASSING = ("READONLY", "OOM", "MISCONF", "LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN")
# The prefix that Redis 6 adds to the error of a command in a script.
_IN_SCRIPT = re.compile(r"^.*@user_script: ?\d+: -?")
# A missing right, as Redis 6 and Redis 7 report it from inside a script.
_DENIED_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script")
_HARM = "batches are then done again, perhaps cut differently, which only sinks that key rows by origin take unharmed"
_CURE = "set appendonly yes and appendfsync always, or keep the offsets elsewhere"


def checked(url: str, example: str) -> str:
    """Return `url`. ConfigError if it is not a Redis URL."""
    if not isinstance(url, str) or not url.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError("a URL of Redis is missing", hint=example)
    return url


def connect(url: str) -> Any:
    """Create a client of one server, which connects on first use."""
    redis = require("redis", extra="redis")
    try:
        return redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
            # The driver would repeat a swap whose reply was lost, and then report our own change as a conflict.
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
    except (ValueError, TypeError):
        # Omit the driver's message: it quotes parts of the URL, which may include the password.
        raise ConfigError(
            f"{masked(url)!r} is not a URL of Redis",
            hint="write the special characters of a password as %40 for @, %2F for /, %3A for :",
        ) from None


def translate_error(error: Exception, who: str, *, rights: str) -> HeadraceError:
    """Translate an error of the driver to one of Headrace. `rights` are the commands that the user needs."""
    redis = require("redis", extra="redis")
    message = f"{who}: {error}"
    denied = isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError)
    if denied or any(words in str(error) for words in _DENIED_IN_SCRIPT):
        return ConfigError(message, hint=f"check user and password, and the user's rights to {rights}")
    if isinstance(error, redis.exceptions.MovedError):
        return ConfigError(message, hint="name one server, or a cluster's proxy; not a node of a cluster")
    if isinstance(error, redis.ResponseError) and not _passing(error):
        return ConfigError(message, hint="is it a Redis with scripting, and its key not in use otherwise?")
    return RetriableError(message, hint="is the server up, and its address right?")


def losses(settings: Mapping[str, str], replicas: int) -> list[str]:
    """Warnings about data that a server with these settings may lose. Pure."""
    said = []
    if settings.get("appendonly") != "yes":
        kept = "all since its last snapshot" if settings.get("save") else "everything, for it writes nothing to disk"
        said.append(f"has no append-only file: a crash may lose {kept}; {_HARM}; {_CURE}")
    elif settings.get("appendfsync") == "everysec":
        said.append(f"syncs once a second: a crash of its machine may lose the last two seconds; {_HARM}; {_CURE}")
    elif settings.get("appendfsync") != "always":
        said.append(f"never syncs: a crash of its machine may lose the last half minute; {_HARM}; {_CURE}")
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy.startswith("allkeys") and settings.get("maxmemory", "0") != "0":
        said.append(f"may evict the offsets when memory is short (maxmemory-policy {policy}); use noeviction")
    if replicas:
        said.append(f"has {counted(replicas, 'replica')}, written to later: a failover may lose the last commits")
    return said


def _passing(error: Exception) -> bool:
    redis = require("redis", extra="redis")
    by_class = (redis.exceptions.ReadOnlyError, redis.exceptions.OutOfMemoryError, redis.exceptions.ClusterDownError)
    return isinstance(error, by_class) or _IN_SCRIPT.sub("", str(error)).startswith(_PASSING)
