"""Interleaves two runs in one process: one waits at a crash point while the other continues."""

from contextlib import contextmanager

from headrace.support import crashpoints


@contextmanager
def meanwhile(point, act):
    """Call `act` when `point` is first reached, for example as a faster second run."""
    waiting = [act]

    def hook(reached):
        if reached == point and waiting:
            waiting.pop()()

    crashpoints.install(hook)
    try:
        yield
    finally:
        crashpoints.install(None)
    assert not waiting, f"{point} was never reached"


@contextmanager
def points_reached():
    """The crash points that are reached within the block, in a list."""
    reached = []
    crashpoints.install(reached.append)
    try:
        yield reached
    finally:
        crashpoints.install(None)


class Died(Exception):
    pass


def die():
    raise Died
