import pytest

from servers.hdfs import Hdfs

pytest_plugins = ["headrace.testing.fixtures"]


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory):
    """A real HDFS, shared by all tests."""
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server
