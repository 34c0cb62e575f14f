"""How a run retries: the user's options, and a retry loop that a stop interrupts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from headrace import events
from headrace.errors import ConfigError, RetriableError
from headrace.support.durations import seconds
from headrace.support.retry import RetryPolicy
from headrace.support.validation import check_duration, check_whole_number

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

_Result = TypeVar("_Result")

IDLE = 0.1
"""Seconds between two polls of the topics when there is nothing to read."""
CAUGHT_UP_ATTEMPTS = 10
"""Default number of attempts of a run with `until="caught-up"`, which must not retry forever."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How a run retries a batch that failed.

    It waits `first` before the second attempt, twice as long before each further one, and never longer than `longest`:
    texts such as "500ms" or "30s", or seconds. After `attempts` attempts without progress the run ends with the error.
    By default a continuous run retries forever, and one with `until="caught-up"` makes 10 attempts.
    """

    first: str | float | timedelta = 0.5
    longest: str | float | timedelta = 30.0
    attempts: int | None = None

    def __post_init__(self) -> None:
        for name in ("first", "longest"):
            check_duration(f"Retry: {name}", getattr(self, name), hint=f'hr.Retry({name}="5s")')
        policy = self.policy()
        if policy.first > policy.longest:
            raise ConfigError(f"Retry(first={self.first!r}, longest={self.longest!r}): longest is shorter than first")
        if self.attempts is not None:
            check_whole_number("Retry: attempts", self.attempts, hint="hr.Retry(attempts=5)")

    def policy(self, until: Literal["caught-up"] | None = None) -> RetryPolicy:
        """The delays and the number of attempts of a run with this `until`."""
        attempts = CAUGHT_UP_ATTEMPTS if self.attempts is None and until is not None else self.attempts
        return RetryPolicy(attempts=attempts, first=seconds(self.first) or 0.0, longest=seconds(self.longest) or 0.0)


def retry_until_stopped(
    call: Callable[[], _Result],
    stopped: Callable[[float], bool],
    observe: events.Observer,
    before_retry: Callable[[], object] = lambda: None,
    *,
    policy: RetryPolicy,
) -> _Result | None:
    """The result of `call`, repeated as `policy` says while it raises RetriableError, each time after `before_retry`.

    None once a stop is requested: `stopped` waits for some seconds and returns whether one was. Raises the last error
    when the attempts are used up.
    """
    attempt = 0
    while not stopped(0):
        try:
            return call()
        except RetriableError as error:
            attempt += 1
            if policy.is_last(attempt):
                raise
            observe(events.Retrying(error, attempt, policy.delay(attempt)))
            stopped(policy.delay(attempt))
            before_retry()
    return None
