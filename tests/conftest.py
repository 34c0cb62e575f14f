import sys

import pytest
from hypothesis import settings

from support.command_line import Result
from support.hdfs import Hdfs
from support.project import ROOT

pytest_plugins = ["headrace.testing.fixtures"]

# The duration of an example depends on the machine more than on the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")


SYSTEMS = frozenset(
    {"cassandra", "dynamodb", "hbase", "hdfs", "kafka", "mongo", "postgres", "redis", "schema_registry", "spark"}
    | {"zookeeper"}
)
"""Fixtures that start a server or a JVM: a test that uses one has a marker of the same name."""
UNIT = ROOT / "tests" / "unit"


def pytest_configure(config):
    for name in sorted(SYSTEMS):
        config.addinivalue_line("markers", f"{name}: uses the fixture {name}; added by tests/conftest.py")


def pytest_itemcollected(item):
    if UNIT in item.path.parents:
        return
    params = item.callspec.params if hasattr(item, "callspec") else {}
    names = {value for value in params.values() if isinstance(value, str)}  # request.getfixturevalue(param)
    for name in SYSTEMS & names.union(item.fixturenames):
        item.add_marker(name)


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory):
    """A real HDFS, shared by all tests."""
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def cli(monkeypatch, capsys):
    """`cli("check", app)` runs the command in this process; add the fixture `spark` where the command needs Spark."""
    from headrace.cli.main import main

    # A user's file is imported under its own name, and many tests have an app.py.
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        monkeypatch.delitem(sys.modules, "app", raising=False)
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            main()
        output = capsys.readouterr()
        return Result(exited.value.code or 0, output.out, output.err)

    return run
