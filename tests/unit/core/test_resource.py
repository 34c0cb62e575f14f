"""The lifecycle that stores and sinks share."""

import pytest

from headrace.core.resource import Resource
from headrace.errors import ConfigError


class Recorded(Resource):
    def __init__(self, identity=""):
        self._identity, self.calls = identity, []

    @property
    def identity(self):
        return self._identity

    def open(self, pipeline):
        self.calls.append(f"open {pipeline}")
        return self

    def close(self):
        self.calls.append("close")


def test_a_with_block_closes_also_after_a_failure():
    resource = Recorded()
    with pytest.raises(ValueError, match="broken"), resource.open("clicks"):
        raise ValueError("broken")
    assert resource.calls == ["open clicks", "close"]


def test_the_repr_is_the_identity():
    assert repr(Recorded("postgres localhost:5432 clicks")) == "postgres localhost:5432 clicks"


def test_a_resource_without_identity_keeps_the_repr_of_python():
    assert "Recorded object at" in repr(Recorded())


@pytest.mark.parametrize("connection", ["connection", 0, "", []])
def test_an_opened_connection_is_returned_even_if_it_is_falsy(connection):
    assert Recorded("store").require_open(connection) is connection


def test_a_call_before_open_names_the_resource():
    with pytest.raises(ConfigError, match=r"^sqlite clicks\.db is used before open\(\)"):
        Recorded("sqlite clicks.db").require_open(None)
