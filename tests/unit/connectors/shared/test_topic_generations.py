"""Offsets as timestamps: a topic made anew counts above the old one, whoever comes late."""

import pytest

from headrace.connectors.shared.topic_generations import (
    OFFSETS_PER_GENERATION,
    refuse_unversioned,
    timestamp,
    topic_generation,
)
from headrace.errors import ConfigError, OffsetConflict
from headrace.types import Batch, Range, TopicPartition


class Register:
    """What a store does: a text that is replaced if it is still the one that was read."""

    def __init__(self):
        self.text = None
        self.meanwhile = []

    def read(self):
        return self.text

    def swap(self, old, new):
        if self.meanwhile:
            self.text = self.meanwhile.pop(0)
        if self.text != old:
            return False
        self.text = new
        return True

    def era(self, *topics):
        ranges = tuple(Range(TopicPartition(topic, 0), 0, 1) for topic, _ in topics)
        return topic_generation(Batch(1, ranges, dict(topics)), "a sink", self.read, self.swap, first=1)


def test_a_topic_keeps_its_era_and_one_recreated_gets_the_next():
    register = Register()
    assert [register.era(("clicks", "a")), register.era(("clicks", "a")), register.era(("clicks", "b"))] == [1, 1, 2]


def test_of_two_topics_that_were_written_one_after_the_other_the_later_one_counts():
    register = Register()
    assert [register.era(("old", "a")), register.era(("new", "b")), register.era(("new", "b"))] == [1, 2, 2]


def test_a_pipeline_that_returns_to_an_earlier_topic_is_refused():
    """Its new values would have lower timestamps than the old ones of the topic in between, and vanish silently."""
    register = Register()
    register.era(("old", "a"))
    register.era(("new", "b"))
    with pytest.raises(ConfigError, match="rows of the topic new, which came after old"):
        register.era(("old", "a"))
    assert register.era(("new", "b")) == 2


def test_a_run_that_still_reads_the_topic_that_was_deleted_stops():
    register = Register()
    register.era(("clicks", "a"))
    register.era(("clicks", "b"))
    with pytest.raises(OffsetConflict, match="recreated"):
        register.era(("clicks", "a"))
    assert register.era(("clicks", "b")) == 2


def test_two_runs_that_register_at_once_agree():
    register = Register()
    register.meanwhile = ['[["clicks", "a"]]']
    assert register.era(("clicks", "a")) == 1


def test_offsets_of_two_topics_are_not_compared():
    with pytest.raises(ConfigError, match="do not tell which"):
        Register().era(("clicks", "a"), ("views", "b"))


def test_every_value_of_an_era_is_above_those_of_the_one_before():
    assert timestamp(1, OFFSETS_PER_GENERATION - 1) < timestamp(2, 0)
    with pytest.raises(ConfigError):
        timestamp(1, OFFSETS_PER_GENERATION)


def test_rows_without_an_offset_do_not_go_where_values_have_one():
    refuse_unversioned("a sink", None)
    with pytest.raises(ConfigError, match="_kafka"):
        refuse_unversioned("a sink", '[["clicks", "a"]]')
