"""Unit tests start no server: a test that asks for one fails, and belongs elsewhere."""

import pytest

from support.servers import SERVERS


def refused(name):
    @pytest.fixture(name=name)
    def refuse():
        pytest.fail(f"expected a unit test without servers, got one with the fixture {name}: move it to another folder")

    return refuse


for name in (*SERVERS, "secure_kafka", "spark_cluster", "topic"):
    globals()[name] = refused(name)
