import random

import pytest

from crash.feed import Feed
from crash.pipelines import ALL, SERVERS, Case


@pytest.fixture
def case_on(kafka, topic, tmp_path, request, monkeypatch):
    """Creates a case with its own topic, and the feed of that topic."""
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))

    def make(kind, guarantee="exactly-once", **settings):
        for name in ALL[kind].servers:
            monkeypatch.setenv(SERVERS[name], request.getfixturevalue(name).address)
        events = topic(partitions=2)
        made = Case(
            kind=kind,
            guarantee=guarantee,
            bootstrap=kafka.bootstrap,
            topic=events.name,
            directory=str(tmp_path),
            **settings,
        )
        return made, Feed(kafka.bootstrap, events.name, 2)

    return make


@pytest.fixture
def chance(request):
    """A random generator; `--seed` repeats an earlier run."""
    return random.Random(f"{request.config.option.seed} {request.node.nodeid}")
