"""For tests of transforms (`rows`), and of stores and sinks: the suites, crash points and fixtures of our own."""

from headrace.testing.compare import Difference, compare
from headrace.testing.crash import Crash, kill_at_every_point
from headrace.testing.rows import rows

__all__ = ["Crash", "Difference", "compare", "kill_at_every_point", "rows"]
