"""For people who write stores and sinks: the suites, crash points and fixtures that ours are held to."""

from headrace.testing.crash import Crash, kill_at_every_point
from headrace.testing.ledger import Difference, compare

__all__ = ["Crash", "Difference", "compare", "kill_at_every_point"]
