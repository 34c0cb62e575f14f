"""Effects that are not repeated: a mark per message in a store, set after the effect or before it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import ConfigError, RetriableError
from headrace.spark import tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.core.dead_letters import RecordId
    from headrace.core.effect_marks import EffectLog, EffectLogClient

Mark = Literal["after", "before"]
_MAX_KEY_LENGTH = 200


@dataclass(frozen=True, slots=True)
class EffectGuard:
    """Runs on the executors. A message is a row, identified by its record and its number within the record, or by the
    columns `key`.

    `numbered`: a repeated batch has the rows of a record in the same order.
    """

    marks: EffectLog
    mark: Mark
    key: tuple[str, ...]
    topic_ids: Mapping[str, str]
    numbered: bool

    def message(self, origin: RecordId | None, number: int, row: Mapping[str, Any]) -> str | None:
        """The id of a message; None if a column of its key is NULL."""
        if self.key:
            values = [row[name] for name in self.key]
            text = json.dumps(values, default=str)
            short = text if len(text) <= _MAX_KEY_LENGTH else hashlib.sha256(text.encode()).hexdigest()
            return None if None in values else f"key:{short}"
        if origin is None:  # `log_order` already refuses such rows
            raise ConfigError("a row without its origin cannot be marked")
        if number and not self.numbered:
            raise ConfigError(
                f"several rows come from one record ({origin}), and a repeated batch may have them in another order",
                hint='give columns that identify them: once=…, key=("…", "…")',
            )
        return f"{self.topic_ids.get(origin.topic, '')}:{origin.partition}:{origin.offset}:{number}"

    def client(self) -> EffectLogClient:
        """The client of this process."""
        found: EffectLogClient = tasks.worker_cached(("marks", self.marks), self.marks.connect)
        return found

    def find_done(self, messages: list[str]) -> set[str]:
        try:
            return self.client().find_marked(messages)
        except RetriableError:
            tasks.evict(("marks", self.marks))
            raise

    def run_once(self, message: str, effect: Callable[[], object]) -> None:
        """Run the effect and set its mark. An effect that raises is not marked as done."""
        try:
            client = self.client()
            if self.mark == "after":
                effect()
                client.mark(message)
            elif client.mark(message):
                try:
                    effect()
                except BaseException:
                    client.unmark(message)
                    raise
        except RetriableError:
            tasks.evict(("marks", self.marks))
            raise
