"""How often, and after which waits, a run repeats what failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from headrace import events
from headrace.errors import ConfigError, RetriableError
from headrace.support.durations import seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

_Answer = TypeVar("_Answer")

IDLE = 0.1
"""Seconds between two looks at the topics when there is nothing to read."""
CAUGHT_UP_ATTEMPTS = 10
"""How often a run with an end tries the same thing, unless `attempts` says otherwise: it must not wait without end."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How a run repeats a batch that failed.

    It waits `first` before the second attempt, twice as long before each further one, and never longer than `longest`:
    texts such as "500ms" or "30s", or seconds. After `attempts` attempts without progress the run ends with the error.
    By default a continuous run goes on without end, and one with `until="caught-up"` makes 10 attempts.
    """

    first: str | float | timedelta = 0.5
    longest: str | float | timedelta = 30.0
    attempts: int | None = None

    def __post_init__(self) -> None:
        for name in ("first", "longest"):
            value = getattr(self, name)
            if seconds(value) is None:
                raise ConfigError(
                    f"Retry({name}={value!r}): expected a duration above 0", hint=f'hr.Retry({name}="5s")'
                )
        if self._first > self._longest:
            raise ConfigError(f"Retry(first={self.first!r}, longest={self.longest!r}): longest is shorter than first")
        number = self.attempts
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise ConfigError(
                f"Retry(attempts={number!r}): expected a whole number, at least 1", hint="hr.Retry(attempts=5)"
            )

    @property
    def _first(self) -> float:
        return seconds(self.first) or 0.0

    @property
    def _longest(self) -> float:
        return seconds(self.longest) or 0.0

    def delay(self, attempt: int) -> float:
        """Seconds to wait after attempt number `attempt` has failed."""
        return min(self._longest, self._first * 2.0 ** min(attempt - 1, 20))

    def used_up(self, attempt: int, until: Literal["caught-up"] | None) -> bool:
        """Whether attempt number `attempt` was the last one."""
        limit = CAUGHT_UP_ATTEMPTS if self.attempts is None and until is not None else self.attempts
        return limit is not None and attempt >= limit


def retry_until_stopped(
    ask: Callable[[], _Answer],
    stopped: Callable[[float], bool],
    observe: events.Observer,
    again: Callable[[], object] = lambda: None,
    *,
    retry: Retry | None = None,
    until: Literal["caught-up"] | None = None,
) -> _Answer | None:
    """What `ask` says, asked again while somebody does not answer, after `again`.

    None once a stop is asked for: `stopped` waits for so many seconds, and says whether one was. The error itself once
    the attempts are used up.
    """
    policy, attempt = retry or Retry(), 0
    while not stopped(0):
        try:
            return ask()
        except RetriableError as error:
            attempt += 1
            if policy.used_up(attempt, until):
                raise
            observe(events.Retrying(error, attempt, policy.delay(attempt)))
            stopped(policy.delay(attempt))
            again()
    return None
