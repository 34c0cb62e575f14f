"""Samples are the same for the same seed, and what their pages say."""

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from headrace.cli.produce import SampleName
from headrace.tools import samples
from headrace.tools.samples.trades import TICKERS

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
COMMON_LOG = re.compile(
    r'(\S+) (\S+) (\S+) \[(\d{2}/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "(\w+ \S+ \S+)" (\d{3}) (\S+)'
)


def some(generator, count=300, seed=7, every=timedelta(seconds=1), **extra):
    return list(islice(generator(seed, samples.spaced(START, every), **extra), count))


@pytest.mark.parametrize("name", sorted(samples.SAMPLES))
def test_the_same_seed_gives_the_same_records_and_another_does_not(name):
    generator = samples.SAMPLES[name]
    assert some(generator) == some(generator)
    assert some(generator) != some(generator, seed=8)
    assert [record.at for record in some(generator, 3)] == [START + timedelta(seconds=n) for n in range(3)]


def test_the_command_line_knows_every_sample():
    assert {name.value for name in SampleName} == samples.SAMPLES.keys()


def test_clicks_are_keyed_by_their_user():
    for key, value, headers, at in some(samples.clicks):
        click = json.loads(value)
        assert list(click) == ["user", "page", "at", "referrer"]
        assert key == click["user"].encode()
        assert datetime.fromisoformat(click["at"]) == at
        assert headers == ()


def test_the_id_of_an_event_is_its_millisecond_or_the_next_free_one():
    made = [json.loads(record.value) for record in some(samples.events)]
    assert all(datetime.fromisoformat(event["ts"]).timestamp() * 1000 == event["id"] for event in made)
    assert {event["health"] < 20 for event in made} == {True, False}
    crowded = some(samples.events, every=timedelta(microseconds=1))
    assert len({json.loads(record.value)["id"] for record in crowded}) == len(crowded)


def test_times_of_events_are_those_given_however_fast_they_come():
    """Not those of ids that run ahead: brokers refuse records of the future."""
    crowded = some(samples.events, every=timedelta(microseconds=1))
    assert [record.at for record in crowded] == [START + timedelta(microseconds=n) for n in range(len(crowded))]
    assert {json.loads(record.value)["ts"] for record in crowded} == {START.isoformat(timespec="milliseconds")}


def test_trades_have_ten_tickers_as_keys_and_their_time_outside_the_value():
    made = some(samples.trades)
    assert {record.key for record in made} == {ticker.encode() for ticker in TICKERS}
    assert len(TICKERS) == 10
    for record in made:
        trade = json.loads(record.value)
        assert list(trade) == ["ticker", "ask_price", "ask_size"]
        assert trade["ask_price"] > 0


def test_words_are_lines_without_a_key():
    made = some(samples.words)
    assert {record.key for record in made} == {None}
    assert all(len(record.value.split()) >= 3 and b"\n" not in record.value for record in made)


def test_weblogs_are_in_the_common_log_format_but_for_the_share_that_is_malformed():
    assert all(COMMON_LOG.fullmatch(record.value.decode()) for record in some(samples.weblogs))
    damaged = [r for r in some(samples.weblogs, malformed=0.2) if not COMMON_LOG.fullmatch(r.value.decode())]
    assert 30 <= len(damaged) <= 90
