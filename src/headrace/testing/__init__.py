"""Tools to test transforms (`rows`), and stores and sinks: contract suites, crash points and fixtures."""

from headrace.testing.compare import Difference, compare
from headrace.testing.crash import Crash, kill_at_every_point
from headrace.testing.rows import rows

__all__ = ["Crash", "Difference", "compare", "kill_at_every_point", "rows"]
