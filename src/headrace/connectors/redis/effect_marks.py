"""Effect marks in Redis: a key per message, which expires."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.connectors.redis import client as server
from headrace.support.optional_imports import require
from headrace.support.redaction import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class RedisEffectLog:
    url: str = field(repr=False)
    pipeline: str
    keep: float
    is_local: bool = False

    def prepare(self) -> None:
        with closing(self.connect()) as log_client:
            log_client.find_marked([""])  # reports a wrong address before the first effect

    def connect(self) -> RedisEffectLogClient:
        prefix = f"headrace:mark:{{{self.pipeline}}}:"
        return RedisEffectLogClient(server.connect(self.url), prefix, max(1, int(self.keep * 1000)), masked(self.url))


@dataclass(frozen=True, slots=True)
class RedisEffectLogClient:
    client: Any
    prefix: str
    keep_millis: int
    shown: str

    def find_marked(self, messages: Sequence[str]) -> set[str]:
        if not messages:
            return set()
        with self._translating_errors():
            found = self.client.mget([self.prefix + message for message in messages])
        return {message for message, mark in zip(messages, found, strict=True) if mark is not None}

    def mark(self, message: str) -> bool:
        with self._translating_errors():
            return bool(self.client.set(self.prefix + message, "1", nx=True, px=self.keep_millis))

    def unmark(self, message: str) -> None:
        with self._translating_errors():
            self.client.delete(self.prefix + message)

    def close(self) -> None:
        self.client.close()

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        redis = require("redis", extra="redis")
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise server.translate_error(error, f"marks in {self.shown}", rights="MGET, SET, DEL") from error
