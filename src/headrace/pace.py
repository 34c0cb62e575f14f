"""How long loops wait, and how they ask again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from headrace import events
from headrace.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds."""

    idle: float = 0.1
    first_retry: float = 0.5
    last_retry: float = 30.0

    def retry(self, attempt: int) -> float:
        return float(min(self.last_retry, self.first_retry * 2 ** min(attempt - 1, 20)))


def patiently(
    ask: Callable[[], _Answer],
    stopped: Callable[[float], bool],
    observe: events.Observer,
    again: Callable[[], object] = lambda: None,
) -> _Answer | None:
    """What `ask` says, asked again while somebody does not answer, after `again`.

    None once a stop is asked for: `stopped` waits for so many seconds, and says whether one was.
    """
    pace, attempt = Pace(), 0
    while not stopped(0):
        try:
            return ask()
        except RetriableError as error:
            attempt += 1
            observe(events.Retrying(error, attempt, pace.retry(attempt)))
            stopped(pace.retry(attempt))
            again()
    return None
