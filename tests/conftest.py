import pytest
from hypothesis import settings

from support.hdfs import Hdfs

pytest_plugins = ["headrace.testing.fixtures"]

# How long an example takes tells more of the machine than of the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory):
    """A real HDFS, shared by all tests."""
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server
