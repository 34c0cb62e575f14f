"""How often a failed call is repeated, and how long to wait before each attempt."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff: wait `first` seconds before the second attempt, `factor` times as long before each next one.

    No wait is longer than `longest`; `jitter=0.5` shortens each by up to half of it, at random. The policy stops
    after `attempts` attempts, or once an attempt has failed more than `within` seconds after the first one began.
    """

    attempts: int | None = None
    first: float = 0.0
    longest: float = math.inf
    factor: float = 2.0
    jitter: float = 0.0
    within: float = math.inf

    def delay(self, attempt: int) -> float:
        """Seconds to wait after attempt number `attempt` has failed, without jitter."""
        return min(self.longest, self.first * self.factor ** min(attempt - 1, 20))

    def is_last(self, attempt: int) -> bool:
        """Whether attempt number `attempt` is the last one."""
        return self.attempts is not None and attempt >= self.attempts

    def delays(self, chance: Callable[[], float] = random.random) -> Iterator[float]:
        """Seconds to wait after each failed attempt except the last. `chance` returns numbers from 0 to 1."""
        for attempt in count(1):
            if self.is_last(attempt):
                return
            yield self.delay(attempt) * (1 - self.jitter * chance())

    def tries(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> Iterator[int]:
        """The number of each attempt, from 1, after the wait before it. Leave the loop when an attempt succeeds."""
        deadline = clock() + self.within
        yield 1
        for attempt, delay in enumerate(self.delays(), 2):
            if clock() > deadline:
                return
            if delay:
                sleep(delay)
            yield attempt

    def call(self, function: Callable[[], _Result], is_retriable: Callable[[Exception], bool]) -> _Result:
        """The result of `function`, which is repeated after retriable errors; the last error is raised."""
        last_error: Exception | None = None
        for _ in self.tries():
            try:
                return function()
            except Exception as error:
                if not is_retriable(error):
                    raise
                last_error = error
        assert last_error is not None  # there is always a first attempt
        raise last_error
