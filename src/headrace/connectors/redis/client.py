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

_CONNECT_SECONDS, _RESPONSE_SECONDS = 5, 10
# The first words of temporary errors.
_TEMPORARY = ("READONLY", "OOM", "MISCONF", "LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN")
# The prefix that Redis 6 adds to the error of a command in a script.
_IN_SCRIPT = re.compile(r"^.*@user_script: ?\d+: -?")
# A missing right, as Redis 6 and Redis 7 report it from inside a script.
_DENIED_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script")
_CONSEQUENCE = "batches are then repeated, perhaps with other ranges: only sinks that key rows by record stay correct"
_REMEDY = "set appendonly yes and appendfsync always, or use another store for the offsets"


def check_url(url: str, example: str) -> str:
    """Return `url`. ConfigError if it is not a Redis URL."""
    if not isinstance(url, str) or not url.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError("expected a URL of Redis: redis://, rediss:// or unix://", hint=example)
    return url


def connect(url: str) -> Any:
    """Create a client of one server, which connects on first use."""
    redis = require("redis", extra="redis")
    try:
        return redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=_RESPONSE_SECONDS,
            # The driver would repeat a swap whose reply was lost, and then report its own change as a conflict.
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
    except (ValueError, TypeError):
        # Omit the driver's message: it quotes parts of the URL, which may include the password.
        raise ConfigError(
            f"{masked(url)!r} is not a URL of Redis",
            hint="write the special characters of a password as %40 for @, %2F for /, %3A for :",
        ) from None


def translate_error(error: Exception, owner: str, *, rights: str) -> HeadraceError:
    """Translate an error of the driver to one of Headrace. `rights` are the commands that the user needs."""
    redis = require("redis", extra="redis")
    message = f"{owner}: {error}"
    denied = isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError)
    if denied or any(words in str(error) for words in _DENIED_IN_SCRIPT):
        return ConfigError(message, hint=f"check user and password, and the user's rights to {rights}")
    if isinstance(error, redis.exceptions.MovedError):
        return ConfigError(message, hint="name one server, or a cluster's proxy; not a node of a cluster")
    if isinstance(error, redis.ResponseError) and not _is_temporary(error):
        return ConfigError(message, hint="is it a Redis with scripting, and its key not in use otherwise?")
    return RetriableError(message, hint="is the server up, and its address right?")


def loss_warnings(settings: Mapping[str, str], replicas: int) -> list[str]:
    """Warnings about data that a server with these settings may lose. Pure."""
    warnings = []
    if settings.get("appendonly") != "yes":
        lost = "all since its last snapshot" if settings.get("save") else "everything: it writes nothing to disk"
        warnings.append(f"has no append-only file: a crash may lose {lost}; {_CONSEQUENCE}; {_REMEDY}")
    elif settings.get("appendfsync") == "everysec":
        warnings.append(
            f"syncs once a second: a crash of its machine may lose the last two seconds; {_CONSEQUENCE}; {_REMEDY}"
        )
    elif settings.get("appendfsync") != "always":
        warnings.append(f"never syncs: a crash of its machine may lose the last half minute; {_CONSEQUENCE}; {_REMEDY}")
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy.startswith("allkeys") and settings.get("maxmemory", "0") != "0":
        warnings.append(f"may evict the offsets when memory is short (maxmemory-policy {policy}); use noeviction")
    if replicas:
        warnings.append(
            f"has {counted(replicas, 'replica')}, replicated asynchronously: a failover may lose the last commits"
        )
    return warnings


def _is_temporary(error: Exception) -> bool:
    redis = require("redis", extra="redis")
    by_class = (redis.exceptions.ReadOnlyError, redis.exceptions.OutOfMemoryError, redis.exceptions.ClusterDownError)
    return isinstance(error, by_class) or _IN_SCRIPT.sub("", str(error)).startswith(_TEMPORARY)
