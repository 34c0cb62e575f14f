"""What every benchmark shares: contenders that take turns, medians, ratios, and bounds that must hold."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from benchmarks.machine import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a benchmark runs: one broker, one topic, one Spark session, and a directory that is deleted after.

    Servers that a benchmark needs beside the broker are entered into `servers`, which stops them at the end.
    """

    spark: SparkSession
    bootstrap: str
    topic: str
    records: int
    scratch: Path
    quick: bool
    servers: ExitStack


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the job. `run` does it once, from nothing, and returns the benchmark's number."""

    name: str
    run: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Bound:
    """What the first contender must reach, as a multiple of the number of `against`."""

    against: str
    limit: float
    sense: Literal["at least", "at most"]

    def holds(self, ratio: float) -> bool:
        return ratio >= self.limit if self.sense == "at least" else ratio <= self.limit

    def __str__(self) -> str:
        return f"{self.sense} {self.limit:g}x"


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many rounds are run first and forgotten, and how many are counted."""

    warm_up: int
    counted: int


class Benchmark(ABC):
    """A job, its contenders (Headrace first) and the bounds between them."""

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[str]
    digits: ClassVar[int] = 0
    bounds: ClassVar[Sequence[Bound]] = ()

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @abstractmethod
    def schedule(self) -> Schedule:
        """Fewer rounds where the setting is quick."""

    @abstractmethod
    def contenders(self) -> Sequence[Contender]:
        """In the order of the table; the first is the one the bounds speak of."""

    def details(self) -> dict[str, Any]:
        """Anything else worth keeping in the results; asked after the last round."""
        return {}


@dataclass(frozen=True, slots=True)
class Result:
    """The counted rounds of one benchmark, by contender."""

    benchmark: Benchmark
    rounds: Mapping[str, Sequence[float]]
    cpu_seconds: Mapping[str, Sequence[float]]

    @property
    def ours(self) -> str:
        return next(iter(self.rounds))

    def median(self, contender: str) -> float:
        return statistics.median(self.rounds[contender])

    def cpu(self, contender: str) -> float:
        """Processor seconds of a round, of Python and the JVM together."""
        return statistics.median(self.cpu_seconds[contender])

    def ratio(self, against: str) -> float:
        """Our median as a multiple of theirs."""
        return self.median(self.ours) / self.median(against)

    def bound(self, against: str) -> Bound | None:
        return next((bound for bound in self.benchmark.bounds if bound.against == against), None)

    @property
    def passed(self) -> bool:
        return all(bound.holds(self.ratio(bound.against)) for bound in self.benchmark.bounds)

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.benchmark.title,
            "unit": self.benchmark.unit,
            "median": {name: round(self.median(name), 2) for name in self.rounds},
            "rounds": {name: [round(value, 2) for value in values] for name, values in self.rounds.items()},
            "cpu seconds": {name: round(self.cpu(name), 2) for name in self.rounds},
            "ratio": {f"{self.ours} / {name}": round(self.ratio(name), 3) for name in list(self.rounds)[1:]},
            "bounds": [
                {
                    "ratio": f"{self.ours} / {bound.against}",
                    "must be": str(bound),
                    "is": round(self.ratio(bound.against), 3),
                    "passed": bound.holds(self.ratio(bound.against)),
                }
                for bound in self.benchmark.bounds
            ],
            "details": self.benchmark.details(),
        }


def measure(benchmark: Benchmark, say: Callable[[str], None]) -> Result:
    """Run the contenders in turns, so that whatever the machine does meanwhile happens to all of them.

    Each round starts with another contender, because the first one finds the heap as the round before left it.
    """
    contenders = benchmark.contenders()
    schedule = benchmark.schedule()
    meter = Meter(benchmark.setting.spark)
    rounds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    cpu: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(schedule.warm_up + schedule.counted):
        counted = number >= schedule.warm_up
        first = number % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            _collect_garbage(benchmark.setting.spark)
            used = meter.seconds()
            value = contender.run()
            if counted:
                rounds[contender.name].append(value)
                cpu[contender.name].append(meter.seconds() - used)
            label = f"round {number - schedule.warm_up + 1}" if counted else "warm-up"
            say(f"{benchmark.name}: {label}: {contender.name}: {value:,.{benchmark.digits}f} {benchmark.unit}")
    return Result(benchmark, rounds, cpu)


def _collect_garbage(spark: SparkSession) -> None:
    """Nobody pays for what the contender before left behind."""
    jvm: Any = spark.sparkContext._jvm
    jvm.System.gc()
