"""Offsets in Redis: one readable JSON text per pipeline, replaced by a compare-and-set in Lua."""

from __future__ import annotations

import copy
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.extras import require
from headrace.masking import masked
from headrace.stores.base import OffsetStore
from headrace.stores.marks import MarkKeeper
from headrace.stores.state import Change, State
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.stores.base import Heartbeats
    from headrace.stores.marks import Marks

# The text itself is the version: if it is the one that was read, it does not matter what it was in between.
# A script that fails keeps what it has written: offsets never move without their line in the history, so it goes first.
_SWAP = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[3] ~= '' then redis.call('RPUSH', KEYS[2], ARGV[3]) end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""
_CONNECT_SECONDS, _ANSWER_SECONDS = 5, 10
# Answers of a server that cannot now and may later, by their first word.
_PASSING = ("READONLY", "OOM", "MISCONF", "LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN")
# What Redis 6 puts before the words of a command that failed in a script.
_IN_SCRIPT = re.compile(r"^.*@user_script: ?\d+: -?")
# A missing right, as Redis 6 and Redis 7 report it from inside a script.
_DENIED_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script")
_HARM = "batches are then done again, perhaps cut differently, which only sinks that key rows by origin take unharmed"
_CURE = "set appendonly yes and appendfsync always, or keep the offsets elsewhere"


class Redis(OffsetStore, MarkKeeper):
    """Any number of pipelines in one database of one server: `headrace:{pipeline}` and `headrace:{pipeline}:history`.

    As durable as the server is set up to be: `headrace check` asks it and says what a crash may lose.
    """

    driver = ("redis", "redis")

    def __init__(self, url: str) -> None:
        self._url = checked(url, 'stores.Redis("redis://localhost:6379/0")')
        self._keys = ("", "")
        self._client: Any = None

    @property
    def identity(self) -> str:
        return f"stores.Redis({masked(self._url)!r})"

    def open(self, pipeline: str) -> Self:
        # The braces keep both keys on one node of a cluster.
        self._keys = (f"headrace:{{{pipeline}}}", f"headrace:{{{pipeline}}}:history")
        self._client = connect(self._url)
        with self._translated():
            self._client.ping()
        return self

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def read(self) -> tuple[State, Any]:
        with self._translated() as client:
            text = client.get(self._keys[0])
        return (State.from_json(text) if text else State()), text or ""

    def swap(self, version: Any, old: State, new: State, change: Change | None = None) -> bool:
        appended = change.to_json() if change else ""
        with self._translated() as client:
            return bool(client.eval(_SWAP, 2, *self._keys, version, new.to_json(), appended))

    def heartbeat_handle(self) -> Heartbeats:
        other = copy.copy(self)
        other._client = None
        return other

    def history(self) -> Sequence[Change]:
        with self._translated() as client:
            return [Change.from_json(text) for text in client.lrange(self._keys[1], 0, -1)]

    def advice(self, pipeline: str) -> list[str]:
        redis = require("redis", extra="redis")
        client = self._client or connect(self._url)
        try:
            with self._translated(client):
                client.ping()
                try:
                    settings = client.config_get("*")
                except redis.ResponseError:  # hosted servers hide it
                    unknown = "does not tell its settings (CONFIG is refused): ask whoever runs it"
                    return [f"{self!r} {unknown} for appendonly and appendfsync"]
                replicas = int(client.info("replication").get("connected_slaves", 0))
        finally:
            if client is not self._client:
                client.close()
        return [f"{self!r} {said}" for said in losses(settings, replicas)]

    def marks(self, pipeline: str, keep: float) -> Marks:
        from headrace.stores.marks_redis import RedisMarks

        return RedisMarks(self._url, pipeline, keep)

    @contextmanager
    def _translated(self, client: Any = None) -> Iterator[Any]:
        redis = require("redis", extra="redis")
        client = client or self._client
        if client is None:
            raise ConfigError(f"{self!r} is used before open()")
        try:
            yield client
        except (redis.RedisError, OSError) as error:
            raise translated(error, repr(self), rights="GET, SET, RPUSH, EVAL") from error


def checked(url: str, example: str) -> str:
    """`url`, or ConfigError if it is none of Redis."""
    if not isinstance(url, str) or not url.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError("a URL of Redis is missing", hint=example)
    return url


def connect(url: str) -> Any:
    """A client of one server, which asks nothing before it is used."""
    redis = require("redis", extra="redis")
    try:
        return redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
            # The driver would repeat a swap whose answer was lost, and take our own success for a rival's.
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
    except (ValueError, TypeError):
        # Not a word of the driver's: it quotes pieces of the URL, and one of them may be the password.
        raise ConfigError(
            f"{masked(url)!r} is not a URL of Redis",
            hint="write the special characters of a password as %40 for @, %2F for /, %3A for :",
        ) from None


def translated(error: Exception, who: str, *, rights: str) -> HeadraceError:
    """An error of the driver in our terms. `rights` are the commands that the user needs."""
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
    """What a server with these settings may lose. Pure."""
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
