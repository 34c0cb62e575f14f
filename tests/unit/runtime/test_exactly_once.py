"""Errors of `hr.exactly_once` as Spark shows them: with the hint, and without passwords."""

import traceback
from types import SimpleNamespace

import pytest

import headrace as hr
from headrace import sinks
from headrace.engine.structured.running_query import RunningQuery
from headrace.errors import ConfigError, RetriableError


class Failing(sinks.IdempotentSink):
    """Fails when it is opened."""

    def __init__(self, error):
        self._error = error
        self.closed = 0

    @property
    def identity(self):
        return "failing"

    def secrets(self):
        return frozenset({"hunter2"})

    def open(self, pipeline):
        raise self._error

    def close(self):
        self.closed += 1

    def write(self, batch, rows):
        """Never called."""


class Query:
    """A query that is active."""

    id, run, active, output_mode = "q1", "r1", True, "append"


@pytest.fixture
def failure(monkeypatch):
    """The error of a batch whose sink fails to open, and its traceback."""
    monkeypatch.setattr(RunningQuery, "of", lambda rows: Query())

    def fail(error):
        sink = Failing(error)
        with pytest.raises(Exception) as failed:
            hr.exactly_once(sink, name="clicks")(SimpleNamespace(columns=["user"]), 0)
        assert sink.closed == 1
        return failed.value, "".join(traceback.format_exception(failed.value))

    return fail


def test_the_traceback_has_the_hint(failure):
    given = ConfigError("there is no table", hint="create=True")
    error, shown = failure(given)
    assert error is given
    assert shown.endswith("there is no table\nhint: create=True\n")


@pytest.mark.parametrize("error", [OSError("refused: password=hunter2"), ConfigError("postgresql://ann:hunter2@db")])
def test_secrets_are_masked_also_in_causes(failure, error):
    error.__cause__ = ValueError("hunter2")
    masked, shown = failure(error)
    assert isinstance(masked, RetriableError)
    assert "***" in masked.message
    assert "hunter2" not in shown.replace("ValueError", "")


def test_the_name_is_free_after_a_failure(failure):
    for _ in range(2):
        error, _ = failure(OSError("no space left"))
        assert isinstance(error, OSError)
