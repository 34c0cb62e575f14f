import pytest

import headrace as hr
from headrace import sinks
from headrace.errors import ConfigError


def pipeline(**changes):
    source = hr.Kafka("localhost:9092", topics=["clicks"])
    return hr.Pipeline(name="clicks", source=source, sink=sinks.Memory(), guarantee="at-least-once", **changes)


@pytest.mark.parametrize(
    "conditions", [{}, "user IS NOT NULL", {"": 1}, {"a": 0}, {"a": 1.5}, {"a": "most"}, {"a": True}, {7: 0.5}]
)
def test_what_is_not_a_condition_with_a_share_is_refused_when_the_pipeline_is_built(conditions):
    with pytest.raises(ConfigError, match="expect") as refused:
        pipeline(expect=conditions)
    assert refused.value.hint == 'expect={"user IS NOT NULL": 0.99}'


def test_the_rows_of_a_batch_are_cached_where_they_are_read_more_than_once(tmp_path):
    assert not pipeline().caches_rows
    assert pipeline(expect={"user IS NOT NULL": 0.99}).caches_rows
    fan_out = sinks.Fanout([sinks.Memory(), sinks.Parquet(tmp_path)])
    assert hr.Pipeline(
        name="p", source=hr.Kafka("h:1", topics=["t"]), sink=fan_out, guarantee="at-least-once"
    ).caches_rows
