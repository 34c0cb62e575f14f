"""Checks of a user's transform, without Spark."""

import pytest

from headrace.core.transforms import UnknownSource, refuse_wrong_arguments
from headrace.engine import transform_check
from headrace.engine.source_readers import SourceReaders
from headrace.errors import ConfigError
from headrace.support.tracebacks import shown_path


def given(**frames):
    inputs = object.__new__(SourceReaders)
    inputs._single = False
    return inputs.transform_argument(frames)


def test_a_source_that_is_not_there_is_a_mistake_that_names_those_that_are_and_the_line():
    def transform(sources):
        return sources["clikcs"]

    with pytest.raises(ConfigError) as refused:
        transform_check.apply(transform, given(clicks=None, users=None))
    line = f"{shown_path(__file__)}:{transform.__code__.co_firstlineno + 1}"
    expected = f"the transform does not fit the sources at {line}: expected a source of clicks, users, got 'clikcs'"
    assert (refused.value.message, refused.value.hint) == (expected, "did you mean clicks?")


def test_a_source_may_be_asked_for_as_in_any_dict():
    frames = given(clicks=1, users=2)
    assert frames == {"clicks": 1, "users": 2}
    assert "orders" not in frames and frames.get("orders") is None
    with pytest.raises(KeyError):
        frames["orders"]
    with pytest.raises(UnknownSource, match=r'rows\["clicks"\]'):
        frames["a name that is like none of them"]


class Enriching:
    def __call__(self, rows, day):
        return rows


def test_an_object_with_two_arguments_is_refused_with_the_line_of_its_call():
    line = f"{shown_path(__file__)}:{Enriching.__call__.__code__.co_firstlineno}"
    with pytest.raises(ConfigError) as refused:
        refuse_wrong_arguments(Enriching())
    assert refused.value.message == f"the transform Enriching(rows, day) at {line}: expected one argument, the rows"
