"""Stores and sinks that a run has open are refused to other runs of the process."""

import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.errors import ConfigError, OffsetConflict
from headrace.runtime.in_use import reserve


def test_an_object_that_a_run_has_open_is_refused_to_another_one():
    kept, own = stores.Memory(), sinks.Memory()
    with reserve("clicks", [kept, own]):
        with pytest.raises(OffsetConflict, match="clicks is running already in this process"), reserve("clicks", [own]):
            pass
        with (
            pytest.raises(ConfigError, match=r"orders: stores.Memory\(.*\) is the same object that the run of clicks"),
            reserve("orders", [sinks.Memory(), kept]),
        ):
            pass
        with reserve("orders", [stores.Memory(), sinks.Memory()]):
            pass
    with reserve("orders", [kept, own]):
        pass


def test_a_loop_over_a_store_that_a_run_has_open_is_refused_before_the_store_is_touched():
    class Untouched(stores.Memory):
        def open_for_reading(self, pipeline):
            raise AssertionError("opened")

    kept = Untouched()
    with reserve("clicks", [kept]), pytest.raises(OffsetConflict, match="running already in this process"):
        hr.stream(hr.Kafka("localhost:1", topics=["clicks"]), offsets=kept)
