"""Times of recorded records, lines that are records, and records that are lines."""

import fcntl
import io
import json
import os
import resource
import sys
import threading
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.cli.options import pairs
from headrace.cli.output import progress, records
from headrace.cli.output.send_report import FailedRecordLog
from headrace.core.planner import TopicLog
from headrace.errors import BadRecord, ConfigError
from headrace.tools.records import line_input as lines
from headrace.tools.records import send
from headrace.tools.records.record import ENCODERS, Record, compact, is_record, to_json, to_printable
from headrace.tools.records.replay import EventTime, in_order, shift, shifted, speed, timed_record
from headrace.tools.records.start_positions import StartAt, TopicSelection, positions
from headrace.tools.topics import known_offsets
from headrace.types import TopicPartition

HOUR = 3_600_000
EXACT = (
    b'{"price": 10.10, "big": 12345678901234567890.12345678901234567890, "huge": 1e400, "a": 1, "a": 2,'
    b' "e": {"x": "\\u00e9", "at" : "2026-11-15T12:00:00.120Z", "s":1763208000.10}, "long": ' + b"7" * 5000 + b"}"
)


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
    assert EventTime.read(written).shifted(HOUR) == later
    assert EventTime.read(later).milliseconds - EventTime.read(written).milliseconds == HOUR


@pytest.mark.parametrize("written", [None, True, "soon", "2026-11-15", 10**21, {"at": 1}])
def test_an_invalid_time_is_refused(written):
    with pytest.raises(ValueError, match="expected a time, got"):
        EventTime.read(written)


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
    assert timed_record(line.encode(), None, None).record == record


def test_json_values_stand_in_a_line_as_they_are_and_come_back():
    for raw in (b'{"a": [1.10, "x"]}', b'"a string"', b"null", b"12", None):
        record = Record("t", 0, 0, None, None, None, raw)
        assert timed_record(to_json(record, parsed=True).encode(), None, None).record == record
    assert '"value": {"a": 1.10}' in to_json(Record("t", 0, 0, 0, None, None, b'{"a":\n 1.10}'), parsed=True)


def test_json_is_one_line_and_strict():
    assert compact('{\n  "a": "\u202e"\n}'.encode()) == '{ "a": "\\u202e" }'
    for wrong in (b"NaN", b"{", b"\xff", b"", b"1 2", b"[" * 100_000):
        for taken in (compact, ENCODERS["json"]):
            with pytest.raises(ValueError):
                taken(wrong)


def test_a_value_comes_back_byte_for_byte_but_for_the_time_that_is_shifted():
    line = to_json(Record("t", 0, 0, 1_763_208_000_000, "create", None, EXACT), parsed=True).encode()
    given = timed_record(line, "e.at", None)
    assert given.record.value == EXACT
    assert shifted(given, HOUR, "e.at").value == EXACT.replace(b"T12:", b"T13:")
    given = timed_record(EXACT, "e.s", "price")
    assert given.record.key == b"10.10"
    assert shifted(given, HOUR, "e.s").value == EXACT.replace(b"1763208000.10", b"1763211600.10")


def test_a_timestamp_that_is_later_than_the_time_in_the_value_is_not_shifted_ahead_of_now():
    line = to_json(Record("t", 0, 0, 1_763_208_000_000 + 5 * HOUR, "create", None, b'{"at": 1763208000}')).encode()
    late = shifted(timed_record(line, "at", None), HOUR, "at", now=1_763_208_000_000 + HOUR)
    assert (late.timestamp, late.value) == (1_763_208_000_000 + HOUR, b'{"at": 1763211600}')


def test_a_timestamp_out_of_range_stays_a_number():
    record = Record("t", 0, 0, 1_763_200_000_123_456, "create", None, b"v")
    assert timed_record(to_json(record).encode(), None, None).record == record


def test_a_tombstone_goes_by_its_own_time():
    line = to_json(Record("t", 0, 0, 1000, "create", b"k", None)).encode()
    given = timed_record(line, "at", None)
    assert (given.at.milliseconds, shifted(given, HOUR, "at").timestamp) == (1000, 1000 + HOUR)
    assert shifted(given, HOUR, "at").value is None


def test_text_is_shown_without_what_a_terminal_obeys():
    assert to_printable(b"a\x1b]0;title\x07\x9b\n") == "a\\x1b]0;title\\x07\\x9b\\n"
    assert to_printable("\u0085\u2066é\t".encode()) == "\\x85\\u2066é\t"


def test_plain_objects_have_the_key_and_the_time_that_are_named():
    line = b'{"user": {"id": 7}, "meta": {"at": "2026-11-15T12:00:00Z"}, "n": 1.50}'
    given = timed_record(line, "meta.at", "user.id")
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
        (b'{"topic": "t", "partition": "0", "offset": 1, "timestamp": 5, "value": "v"}', "its partition is '0'"),
        (b'{"at": ' + b"[" * 100_000, "nested too deeply"),
    ],
    ids=["text", "list", "no time", "no timestamp", "no number", "deep"],
)
def test_a_line_that_is_none_is_refused_with_the_reason(line, why):
    with pytest.raises(BadRecord, match=why):
        timed_record(line, "at", None)


@pytest.mark.parametrize("factor", [0.5, 1, 60, None])
def test_shifted_times_are_as_late_as_can_be_and_never_ahead_of_the_moment_they_are_sent_at(factor):
    times, now = [5000.0, 1000.0, 61_000.0], 1_763_208_000_000.0
    by = shift(times, factor, now)
    sent = {at: now + (0 if factor is None else (at - 1000.0) / factor) for at in times}
    assert min(sent[at] - (at + by) for at in times) == 0
    assert shift([], factor, now) == 0


def test_a_record_that_has_a_key_is_not_given_another():
    line = to_json(Record("t", 0, 0, 1000, "create", b"k", b'{"user": 1}')).encode()
    with pytest.raises(BadRecord, match="its own key"):
        timed_record(line, None, "user")


def test_speeds_are_factors_or_as_fast_as_can_be():
    assert [speed(text) for text in ("60x", "0.5x", "2", "max")] == [60, 0.5, 2, None]
    for wrong in ("fast", "0x", "-1x", "infx", "nan"):
        with pytest.raises(ConfigError):
            speed(wrong)


@pytest.fixture
def pipe():
    """Both ends; nobody waits at either, and select() would know neither."""
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    low = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 1024) for end in low]
    for end, other in zip(ends, low, strict=True):
        os.close(other)
        os.set_blocking(end, False)
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))


@pytest.mark.parametrize("buffering", [0, -1], ids=["unbuffered", "buffered"])
def test_all_of_a_page_is_written_whatever_the_output_takes_at_once(monkeypatch, pipe, buffering):
    data, read = os.urandom(1 << 20), io.BytesIO()
    os.set_blocking(pipe[0], True)
    reader = threading.Thread(target=lambda: [read.write(some) for some in iter(lambda: os.read(pipe[0], 5000), b"")])
    reader.start()
    with os.fdopen(pipe[1], "wb", buffering=buffering) as out:
        monkeypatch.setattr(records, "sys", SimpleNamespace(stdout=SimpleNamespace(buffer=out)))
        records.write(data)
    reader.join(10)
    assert read.getvalue() == data


def test_records_that_cannot_be_shown_are_counted_once_and_not_as_printed(capsys):
    wrong, right = (Record("t", 0, n, None, None, raw, raw) for n, raw in enumerate((b"{", b"1")))
    printer = records.Printer("json", "json", ("key",), "null", ":", as_json=False)
    assert printer.print([wrong, wrong, right, right, right], 2) == 4
    assert (printer.printed, printer.wrong, capsys.readouterr().out) == (2, 2, "1:1\n1:1\n")


def given(monkeypatch, descriptor):
    monkeypatch.setattr(lines, "sys", SimpleNamespace(stdin=SimpleNamespace(fileno=lambda: descriptor)))
    return (line for line in lines.from_stdin(lambda: False) if line is not None)


def test_an_input_that_does_not_wait_is_waited_for(monkeypatch, pipe):
    found = given(monkeypatch, pipe[0])
    threading.Timer(0.3, os.write, (pipe[1], b"one\n\ntw")).start()
    assert [next(found), next(found)] == [b"one", b""]
    os.write(pipe[1], b"o\nthree")
    os.close(pipe[1])
    assert list(found) == [b"two", b"three"]


def test_an_input_that_cannot_be_read_and_a_line_without_an_end_are_reported(monkeypatch, pipe, tmp_path):
    directory = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(ConfigError, match="Is a directory"):
        next(given(monkeypatch, directory))
    os.close(directory)
    monkeypatch.setattr(lines, "_MAX_LINE_BYTES", 1 << 20)
    (tmp_path / "long").write_bytes(b"x\n" + b"x" * (1 << 20) + b"\n")
    found = lines.from_files([tmp_path / "long"])
    assert next(found) == b"x\n"
    with pytest.raises(ConfigError, match="longer than 1 MiB"):
        next(found)
    os.set_blocking(pipe[1], True)
    writer = threading.Thread(target=os.write, args=(pipe[1], b"x" * ((1 << 20) + 1)), daemon=True)
    writer.start()
    with pytest.raises(ConfigError, match="longer than 1 MiB"):
        next(given(monkeypatch, pipe[0]))
    writer.join(10)


def test_what_was_not_there_in_its_time_is_not_sent_in_a_burst(monkeypatch):
    now, sent = [0.0], []
    sender = SimpleNamespace(wait=lambda seconds: now.__setitem__(0, now[0] + seconds))
    sender.send = lambda record: sent.append(round(now[0], 1))
    monkeypatch.setattr(send, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def idle_for_four_seconds():
        yield "record"
        for _ in range(40):
            now[0] += 0.1
            yield None
        yield from ["record"] * 3

    send.send_all(sender, idle_for_four_seconds(), lambda: False, lambda number: number / 10)
    assert sent[0] == 0
    assert [round(later - earlier, 1) for earlier, later in pairwise(sent[1:])] == [0.1, 0.1]


def test_a_file_for_failed_records_that_cannot_be_written_is_blamed_by_its_own_name_once():
    record = Record("t", 0, None, None, None, None, b"v")
    with FailedRecordLog(Path("/dev/full")) as failures:
        with pytest.raises(ConfigError, match="/dev/full cannot be written: No space left"):
            failures(record, "too large")
        failures(record, "too large")


def test_a_closed_standard_error_is_no_terminal_and_nothing_goes_elsewhere(monkeypatch, capsys):
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=None, stdout=sys.stdout))
    with progress.progress() as say:
        say("1 of 2 records")
    assert capsys.readouterr().out == ""


def test_a_directory_for_failed_records_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="is a directory"), FailedRecordLog(tmp_path):
        pass


def test_a_secret_with_the_wrong_sign_before_it_is_not_repeated():
    with pytest.raises(ConfigError, match=r"sasl\.password") as told:
        pairs("--option", ["sasl.password hunter2"], "a=b")
    assert "hunter2" not in told.value.message


def test_a_broker_that_does_not_know_an_offset_says_so_by_a_negative_one():
    said = {0: 5, 1: -1001, 2: 0}
    futures = {TopicPartition("t", number): Future() for number in said}
    for place, future in futures.items():
        future.set_result(SimpleNamespace(offset=said[place.partition]))
    assert known_offsets(futures) == {TopicPartition("t", 0): 5, TopicPartition("t", 2): 0}


def test_every_partition_that_is_named_must_be_there():
    at = TopicPartition("t", 0)
    log = TopicLog("id", {at: 0}, {at: 5})
    assert positions(StartAt(edge="latest"), {"t": log}, TopicSelection(("t",), None, frozenset({0})), {}) == {at: 5}
    with pytest.raises(ConfigError, match="no topic has a partition 9"):
        positions(StartAt(edge="latest"), {"t": log}, TopicSelection(("t",), None, frozenset({0, 9})), {})
