import os
import random
import sys
from collections import defaultdict

import pytest
from hypothesis import settings

from headrace.dev.jvm import SMALL_JVM
from support.command_line import Result
from support.hdfs import Hdfs
from support.project import ROOT
from support.servers import SERVERS

pytest_plugins = ["headrace.testing.fixtures"]

# The duration of an example depends on the machine more than on the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")


UNIT = ROOT / "tests" / "unit"


def pytest_addoption(parser):
    group = parser.getgroup("headrace")
    group.addoption("--seed", type=int, help="of random kills and of --sample: repeats the choices of an earlier run")
    group.addoption("--sample", action="store_true", help="run a sample of each kill matrix; `make crash` runs all")


def pytest_configure(config):
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):  # of the JVMs that the tests of commands start
        os.environ.setdefault(name, " ".join(SMALL_JVM))
    if config.option.seed is None:
        # In the environment, where the workers of xdist find it: they must collect the same sample.
        given = os.environ.setdefault("HEADRACE_TEST_SEED", str(random.SystemRandom().randrange(1_000_000)))
        config.option.seed = int(given)
    config.addinivalue_line("markers", "matrix(sample): many cases of one kill test; with --sample so many of them run")
    for name in sorted(SERVERS):
        config.addinivalue_line("markers", f"{name}: uses the fixture {name}; added by tests/conftest.py")


def pytest_itemcollected(item):
    if UNIT in item.path.parents:
        return
    params = item.callspec.params if hasattr(item, "callspec") else {}
    names = {value for value in params.values() if isinstance(value, str)}  # request.getfixturevalue(param)
    for name in SERVERS & names.union(item.fixturenames):
        item.add_marker(name)


def pytest_report_header(config):
    return f"seed: {config.option.seed}" + ("; of each kill matrix a sample" if config.option.sample else "")


def pytest_collection_modifyitems(config, items):
    if not config.option.sample:
        return
    matrices = defaultdict(list)
    for item in items:
        if item.get_closest_marker("matrix"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for name, cases in matrices.items():
        count = min(cases[0].get_closest_marker("matrix").kwargs["sample"], len(cases))
        left_out |= set(cases) - set(random.Random(f"{config.option.seed} {name}").sample(cases, count))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


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
