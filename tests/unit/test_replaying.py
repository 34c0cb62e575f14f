"""Times of recorded records, and lines that are records."""

import json

import pytest

from headrace.errors import BadRecord, ConfigError
from headrace.kafka.records import Record, compact, from_json, is_record, shown, to_json
from headrace.kafka.replaying import Moment, in_order, recorded, shifted, speed

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("written", "later"),
    [
        ("2026-11-15T12:00:00Z", "2026-11-15T13:00:00Z"),
        ("2026-11-15T12:00:00.120Z", "2026-11-15T13:00:00.120Z"),
        ("2026-11-15 12:00:00.123456789", "2026-11-15 13:00:00.123456000"),
        ("2026-11-15T23:30:00+02:00", "2026-11-16T00:30:00+02:00"),
        ("2026-11-15T12:00", "2026-11-15T13:00"),
        (1_763_208_000, 1_763_211_600),
        (1_763_208_000.5, 1_763_211_600.5),
        (1_763_208_000_000, 1_763_211_600_000),
        (1_763_208_000_000_000, 1_763_211_600_000_000),
    ],
)
def test_a_time_is_shifted_and_written_as_it_was(written, later):
    assert Moment.read(written).shifted(HOUR) == later
    assert Moment.read(later).milliseconds - Moment.read(written).milliseconds == HOUR


@pytest.mark.parametrize("written", [None, True, "soon", "2026-11-15", 10**21, {"at": 1}])
def test_what_is_no_time_is_refused(written):
    with pytest.raises(ValueError, match="no time"):
        Moment.read(written)


def test_records_go_by_time_and_never_before_those_of_their_own_partition():
    a, b = ("t", 0), ("t", 1)
    lines = [(a, 10.0), (a, 30.0), (a, 20.0), (b, 15.0), (b, None), (b, 40.0)]
    assert in_order(lines) == [(0, 10.0), (3, 15.0), (4, 15.0), (1, 30.0), (2, 30.0), (5, 40.0)]


@pytest.mark.parametrize("raw", [None, b"", b"text", b"\xff\x00", "Zoë \u2028".encode(), b'{"a": 1}'])
def test_a_record_comes_back_from_its_line_as_it_was(raw):
    record = Record("t", 1, 7, 1_763_208_000_123, "create", raw, raw, (("h", raw), ("h", b"2")))
    line = to_json(record)
    assert "\n" not in line
    assert is_record(json.loads(line))
    assert from_json(json.loads(line)) == record
    assert recorded(line.encode(), None, None).record == record


def test_json_values_stand_in_a_line_as_they_are_and_come_back():
    for raw in (b'{"a": [1.10, "x"]}', b'"a string"', b"null", b"12", None):
        record = Record("t", 0, 0, None, None, None, raw)
        again = from_json(json.loads(to_json(record, parsed=True))).value
        assert again == raw or json.loads(again) == json.loads(raw)
    assert '"value": {"a": 1.10}' in to_json(Record("t", 0, 0, 0, None, None, b'{"a":\n 1.10}'), parsed=True)


def test_json_is_one_line_and_strict():
    assert compact('{\n  "a": "\u202e"\n}'.encode()) == '{ "a": "\\u202e" }'
    for wrong in (b"NaN", b"{", b"\xff", b"", b"1 2"):
        with pytest.raises(ValueError):
            compact(wrong)


def test_text_is_shown_without_what_a_terminal_obeys():
    assert shown(b"a\x1b]0;title\x07\x9b\n") == "a\\x1b]0;title\\x07\\x9b\\n"
    assert shown("\u0085\u2066é\t".encode()) == "\\x85\\u2066é\t"


def test_plain_objects_have_the_key_and_the_time_that_are_named():
    line = b'{"user": {"id": 7}, "meta": {"at": "2026-11-15T12:00:00Z"}, "n": 1.50}'
    given = recorded(line, "meta.at", "user.id")
    assert (given.record.key, given.record.value) == (b"7", line)
    assert given.record.timestamp == given.at.milliseconds == 1_794_744_000_000
    moved = shifted(given, HOUR, "meta.at")
    assert json.loads(moved.value)["meta"]["at"] == "2026-11-15T13:00:00Z"
    assert moved.timestamp == 1_794_744_000_000 + HOUR


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nope", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"at": "soon"}', "no time at at"),
        (b'{"topic": "t", "partition": 0, "offset": 1, "timestamp": "x", "value": "v"}', "not a record"),
    ],
)
def test_a_line_that_is_none_is_refused_with_the_reason(line, why):
    with pytest.raises(BadRecord, match=why):
        recorded(line, "at", None)


def test_speeds_are_factors_or_as_fast_as_can_be():
    assert [speed(text) for text in ("60x", "0.5x", "2", "max")] == [60, 0.5, 2, None]
    for wrong in ("fast", "0x", "-1x", "infx", "nan"):
        with pytest.raises(ConfigError):
            speed(wrong)
