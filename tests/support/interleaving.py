"""Two runs in one process: one is held at a crash point while the other goes on."""

from contextlib import contextmanager

from headrace.support import crashpoints


@contextmanager
def meanwhile(point, act):
    """When `point` is first reached, let `act` happen in between: another run that is faster."""
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


class Died(Exception):
    pass


def die():
    raise Died
