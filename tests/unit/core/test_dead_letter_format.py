"""Stored dead letters: those of the first format are read, a new field is added to tables and topics, a newer format
is refused.

The files in tests/stored/format_1 were written before dead letters had a format.
"""

import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace import sinks
from headrace.connectors.sql import dead_letter_table
from headrace.core import dead_letters
from headrace.core.dead_letters import DeadLetter, RecordId
from headrace.errors import ConfigError
from headrace.kafka import dead_letter_topic

STORED = Path(__file__).parents[2] / "stored" / "format_1"
LETTER = DeadLetter(
    RecordId("clicks", 1, 42),
    datetime(2026, 11, 18, 12, 30, tzinfo=UTC),
    b"\0k",
    b"{broken",
    (("trace", b"\xff1"), ("none", None)),
    "not valid JSON",
    "decode",
)


@dataclass(frozen=True, slots=True)
class NewerLetter(DeadLetter):
    step: str = ""


NEWER_FIELDS = (*dead_letters.TEXT_FIELDS, "step")
NEWER = NewerLetter(
    RecordId("clicks", 0, 7), LETTER.timestamp, b"k", b"v", LETTER.headers, "bad", "transform", step="enrich"
)


@pytest.fixture
def newer_version(monkeypatch):
    """As if DeadLetter had one more field."""
    for module in (dead_letter_table, dead_letter_topic):
        monkeypatch.setattr(module, "DeadLetter", NewerLetter)
        monkeypatch.setattr(module, "TEXT_FIELDS", NEWER_FIELDS)
    monkeypatch.setattr(dead_letter_topic, "FORMAT", len(NEWER_FIELDS) - 1)


@pytest.fixture
def first_format(tmp_path):
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.executescript((STORED / "sqlite.sql").read_text())
    connection.close()
    return path


@pytest.fixture(params=[sinks.SQLite, sinks.DuckDB])
def database(request, tmp_path):
    return lambda: request.param(tmp_path / "new.db", "clicks").open("clicks")


def store(sink, *letters):
    with sink.offsets.transaction() as connection:
        sink.store_dead_letters(connection, "clicks_dead", letters)


class Message:
    """A record in a dead-letter topic."""

    def __init__(self, key, value, headers):
        self._key, self._value, self._headers = key, value, headers

    def headers(self):
        return self._headers

    def key(self):
        return self._key

    def value(self):
        return self._value

    def topic(self):
        return "clicks-dead"


def sent(letter):
    return Message(letter.key, letter.value, [*letter.headers, *dead_letter_topic.dead_letter_headers(letter)])


def received(message):
    return dead_letter_topic.read_dead_letter(message, message.headers())


def test_fields_are_named_once():
    assert dead_letters.TEXT_FIELDS == ("error", "place")
    assert dead_letters.FORMAT == 1


def test_a_table_of_the_first_format_is_read(first_format):
    with sinks.SQLite(first_format, "clicks").open("clicks") as sink:
        assert sink.read_dead_letters("clicks_dead") == [LETTER]


def test_a_record_of_the_first_format_is_read():
    headers = json.loads((STORED / "dead_letter_headers.json").read_text())
    message = Message(
        LETTER.key, LETTER.value, [(name, None if value is None else bytes.fromhex(value)) for name, value in headers]
    )
    assert received(message) == LETTER


def test_what_is_stored_today_is_read_again(database):
    with database() as sink:
        store(sink, LETTER)
        assert sink.read_dead_letters("clicks_dead") == [LETTER]
    assert received(sent(LETTER)) == LETTER


def test_a_new_field_is_added_to_a_table_and_its_letters_stay(database, newer_version, monkeypatch):
    with monkeypatch.context() as before, database() as sink:
        before.setattr(dead_letter_table, "TEXT_FIELDS", dead_letters.TEXT_FIELDS)
        store(sink, LETTER)
    with database() as sink:
        (old,) = sink.read_dead_letters("clicks_dead")
        assert (old.origin, old.place, old.step) == (LETTER.origin, "decode", "")
        store(sink, NEWER)
        assert [letter.step for letter in sink.read_dead_letters("clicks_dead")] == ["enrich", ""]
        store(sink, NEWER)
        assert len(sink.read_dead_letters("clicks_dead")) == 2


def test_a_new_field_is_in_a_table_that_is_created_with_it(database, newer_version):
    with database() as sink:
        store(sink, NEWER)
        assert sink.read_dead_letters("clicks_dead") == [NEWER]


def test_a_new_field_is_a_header_in_a_topic_and_empty_in_older_records(newer_version, monkeypatch):
    assert received(sent(NEWER)) == NEWER
    with monkeypatch.context() as before:
        before.setattr(dead_letter_topic, "TEXT_FIELDS", dead_letters.TEXT_FIELDS)
        before.setattr(dead_letter_topic, "FORMAT", dead_letters.FORMAT)
        older = sent(LETTER)
    assert received(older).step == ""


def test_a_table_of_a_newer_format_is_neither_read_nor_written(database):
    with database() as sink:
        store(sink, LETTER)
        with sink.offsets.transaction() as connection:
            connection.execute("UPDATE headrace_formats SET format = 2 WHERE table_name = 'main.clicks_dead'")
        expected = "table main.clicks_dead is stored in format 2: expected at most format 1"
        with pytest.raises(ConfigError, match=expected):
            sink.read_dead_letters("clicks_dead")
        with pytest.raises(ConfigError, match=expected):
            store(sink, LETTER)


def test_a_record_of_a_newer_format_is_refused(monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(dead_letter_topic, "FORMAT", 2)
        message = sent(LETTER)
    with pytest.raises(
        ConfigError,
        match=r"the dead letter of clicks\[1\] offset 42 in topic clicks-dead is stored in format 2: expected at most",
    ):
        received(message)


def test_the_headers_of_a_record_cannot_pass_for_those_of_its_dead_letter():
    forging = DeadLetter(
        LETTER.origin, None, None, None, (("headrace.format", b"9"), ("headrace.error", b"x")), "bad", "p"
    )
    letter = received(sent(forging))
    assert (letter.error, letter.headers) == ("bad", ())
