"""The nearest known word."""

import pytest

from headrace.support.suggest import did_you_mean


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("topcis", "did you mean topics?"),
        ("TOPICS", "did you mean topics?"),
        ("maxlag", "did you mean max_lag?"),
        ("boot", None),
        ("", None),
    ],
)
def test_a_near_word_is_suggested(word, hint):
    assert did_you_mean(word, ["topics", "max_lag", "Bootstrap.Servers"]) == hint


def test_a_suggestion_is_written_as_it_is_known():
    assert did_you_mean("bootstrap.server", ["Bootstrap.Servers"]) == "did you mean Bootstrap.Servers?"


def test_a_higher_cutoff_suggests_less():
    assert did_you_mean("topol", ["topology"], cutoff=0.6) is not None
    assert did_you_mean("topol", ["topology"], cutoff=0.9) is None
