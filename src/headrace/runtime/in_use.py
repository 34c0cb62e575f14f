"""Tracks the stores and sinks that runs of this process have open: each is one connection, for one pipeline."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, OffsetConflict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.core.resource import Resource

_USERS: dict[int, tuple[Resource, str]] = {}
"""By identity: the object and the pipeline that uses it."""
_LOCK = threading.Lock()


@contextmanager
def reserve(pipeline: str, resources: Iterable[Resource]) -> Iterator[None]:
    """Within the block, no other run of this process may use these objects.

    OffsetConflict if another run of `pipeline` uses one of them, ConfigError if a run of another pipeline does.
    """
    reserved = {id(resource): resource for resource in resources}
    with _LOCK:
        for key, resource in reserved.items():
            if key in _USERS:
                raise _conflict(pipeline, resource, _USERS[key][1])
        _USERS.update({key: (resource, pipeline) for key, resource in reserved.items()})
    try:
        yield
    finally:
        with _LOCK:
            for key in reserved:
                del _USERS[key]


def _conflict(pipeline: str, resource: Resource, user: str) -> ConfigError | OffsetConflict:
    if user == pipeline:
        return OffsetConflict(f"{pipeline} is running already in this process", hint="run.stop() and run.wait() first")
    return ConfigError(
        f"{pipeline}: {resource!r} is the same object that the run of {user} has open",
        hint="create one for each pipeline: a store or sink is one connection",
    )
