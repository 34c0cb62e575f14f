"""Offsets in Redis: one JSON text per pipeline, replaced by a compare-and-set in Lua."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.redis.client import check_url, connect, loss_warnings, translate_error
from headrace.core.effect_marks import EffectStore
from headrace.core.offset_store import OffsetStore
from headrace.core.state import AuditEntry, State
from headrace.support.optional_imports import require
from headrace.support.redaction import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.core.effect_marks import EffectLog
    from headrace.core.offset_store import Heartbeats

# The text itself is the version: if it equals the one that was read, changes in between do not matter.
# A failed script keeps its writes. The history entry is written first, so that offsets never move without one.
_SWAP = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[3] ~= '' then redis.call('RPUSH', KEYS[2], ARGV[3]) end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


class Redis(OffsetStore, EffectStore):
    """Any number of pipelines in one database of one server: `headrace:{pipeline}` and `headrace:{pipeline}:history`.

    Durability depends on the settings of the server: `headrace check` reads them and warns about what a crash may lose.
    """

    driver = ("redis", "redis")

    def __init__(self, url: str) -> None:
        self._url = check_url(url, 'stores.Redis("redis://localhost:6379/0")')
        self._keys = ("", "")
        self._client: Any = None

    @property
    def identity(self) -> str:
        return f"stores.Redis({masked(self._url)!r})"

    def open(self, pipeline: str) -> Self:
        # The braces keep both keys on one node of a cluster.
        self._keys = (f"headrace:{{{pipeline}}}", f"headrace:{{{pipeline}}}:history")
        self._client = connect(self._url)
        with self._translating_errors():
            self._client.ping()
        return self

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def read(self) -> tuple[State, Any]:
        with self._translating_errors() as client:
            text = client.get(self._keys[0])
        return (State.from_json(text) if text else State()), text or ""

    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        appended = change.to_json() if change else ""
        with self._translating_errors() as client:
            return bool(client.eval(_SWAP, 2, *self._keys, version, new.to_json(), appended))

    def heartbeat_handle(self) -> Heartbeats:
        other = copy.copy(self)
        other._client = None
        return other

    def history(self) -> Sequence[AuditEntry]:
        with self._translating_errors() as client:
            return [AuditEntry.from_json(text) for text in client.lrange(self._keys[1], 0, -1)]

    def durability_warnings(self, pipeline: str) -> list[str]:
        redis = require("redis", extra="redis")
        client = self._client or connect(self._url)
        try:
            with self._translating_errors(client):
                client.ping()
                try:
                    settings = client.config_get("*")
                except redis.ResponseError:  # hosted servers hide it
                    unknown = "does not show its settings (CONFIG is denied): ask its operator"
                    return [f"{self!r} {unknown} for appendonly and appendfsync"]
                replicas = int(client.info("replication").get("connected_slaves", 0))
        finally:
            if client is not self._client:
                client.close()
        return [f"{self!r} {warning}" for warning in loss_warnings(settings, replicas)]

    def marks(self, pipeline: str, keep: float) -> EffectLog:
        from headrace.connectors.redis.effect_marks import RedisEffectLog

        return RedisEffectLog(self._url, pipeline, keep)

    @contextmanager
    def _translating_errors(self, client: Any = None) -> Iterator[Any]:
        redis = require("redis", extra="redis")
        client = self.require_open(client or self._client)
        try:
            yield client
        except (redis.RedisError, OSError) as error:
            raise translate_error(error, repr(self), rights="GET, SET, RPUSH, EVAL") from error
