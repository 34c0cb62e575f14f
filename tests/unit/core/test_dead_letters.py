"""The bytes of a batch's dead letters are within_size, and none of the letters is lost for it."""

from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import sinks
from headrace.connectors.shared.rejected_rows import RejectedRows
from headrace.core.dead_letters import DeadLetter, DeadLetterBatch, RecordId, RejectedRow, shortened, within_size
from headrace.kafka.dead_letter_topic import DeadLetterTopic
from headrace.tools.dead_letters import DeadLetterAdmin


def letter(offset, size, error="bad"):
    return DeadLetter(RecordId("t", 0, offset), None, None, b"x" * size, (), error, "decoding")


def test_the_size_of_a_letter_is_that_of_key_value_and_headers():
    large = DeadLetter(RecordId("t", 0, 1), None, b"k", b"x" * 100, (("h", b"v"),), "bad", "decoding")
    assert large.size == 103
    assert DeadLetterBatch([large], limit=10, max_bytes=103, fetch_records=list).left_out == 0
    kept = DeadLetterBatch([large], limit=10, max_bytes=102, fetch_records=list, table="dead")
    (bare,) = kept.flush()
    assert (kept.left_out, bare.size, bare.origin, bare.place) == (1, 0, large.origin, "decoding")
    assert bare.error.startswith("bad (103 bytes of key, value and headers are left out: ")


def test_refused_rows_share_the_room_of_what_did_not_parse():
    quarantine = DeadLetterBatch([letter(1, 60)], limit=10, max_bytes=100, fetch_records=lambda rows: [letter(2, 50)])
    assert quarantine.remaining_bytes == 40
    quarantine.reject([RejectedRow(RecordId("t", 0, 2), "refused", "table rows")])
    assert (quarantine.count, quarantine.left_out, quarantine.remaining_bytes) == (2, 1, 40)


@given(st.lists(st.integers(0, 50)), st.integers(0, 300))
def test_as_many_as_can_be_keep_their_bytes_and_none_is_lost(sizes, room):
    given_letters = [letter(offset, size) for offset, size in enumerate(sizes)]
    found = within_size(given_letters, room)
    assert [one.origin for one in found] == [one.origin for one in given_letters]
    assert sum(one.size for one in found) <= room
    left = [given for given, kept in zip(given_letters, found, strict=True) if kept.left_out]
    assert not left or sum(one.size for one in found) + min(one.size for one in left) > room
    assert all(kept is given or kept.left_out for given, kept in zip(given_letters, found, strict=True))
    assert within_size(list(reversed(given_letters)), room) == list(reversed(found))


def test_a_reason_that_quotes_a_large_value_is_shortened_on_workers_and_on_the_driver():
    why = "begin" + "x" * 2_000_000 + "end"
    refusals = RejectedRows("sink", limit=10)
    refusals.add(RecordId("t", 0, 1), why)
    for error in (refusals.rows[0][1], RejectedRow(RecordId("t", 0, 1), why, "table rows").error):
        assert len(error) < 10_100
        assert (error[:6], error[-4:]) == ("beginx", "xend")
        assert "1,990,008 characters" in error
    assert shortened("as it is") == "as it is"


class Broker(DeadLetterTopic):
    """Takes records up to `room` bytes of the values that are sent together; the others are returned."""

    def __init__(self, room):
        super().__init__("127.0.0.1:1", {}, "dead")
        self.room, self.taken = room, []

    def _deliver(self, letters, *, alone=False):
        together = sum(letter.size for letter in letters)
        large = [letter for letter in letters if (letter.size if alone else together) > self.room]
        self.taken += [letter for letter in letters if letter not in large]
        return large


def test_a_letter_that_the_topic_has_no_room_for_goes_without_its_bytes():
    broker = Broker(room=100)
    broker.send([letter(1, 60), letter(2, 60), letter(3, 101)])
    assert [one.size for one in broker.taken] == [60, 60, 0]
    bare = broker.taken[-1]
    assert bare.record_missing
    assert bare.error == (
        "bad (101 bytes of key, value and headers are left out: the topic of the dead letters takes no record as large)"
    )


def made(tmp_path):
    source = hr.Kafka("127.0.0.1:1", topics=["t"], format=hr.Json("id INT"))
    sink = sinks.SQLite(tmp_path / "rows.db", "rows")
    return hr.Pipeline(
        name="p", source=source, sink=sink, guarantee="exactly-once", dead_letters=hr.DeadLetters(topic="dead")
    )


def test_a_letter_in_a_topic_is_not_replaced_by_a_later_one_of_the_same_origin(tmp_path, monkeypatch):
    real, twin, forged = letter(1, 5), letter(1, 5), letter(1, 9, "forged")
    monkeypatch.setattr(DeadLetterTopic, "read", lambda topic: [real, letter(2, 1), twin, forged])
    assert DeadLetterAdmin(made(tmp_path)).letters() == [real, letter(2, 1)]


class Message:
    def __init__(self, at, **headers):
        self._offset, self._headers = at, [(f"headrace.{name}", value.encode()) for name, value in headers.items()]

    def headers(self):
        return self._headers

    def offset(self):
        return self._offset

    def topic(self):
        return "dead"

    def key(self):
        return None

    value = key


def test_a_mark_settles_only_what_lies_before_it():
    about = {"topic": "t", "partition": "0", "error": "bad"}
    box = DeadLetterTopic("127.0.0.1:1", {}, "dead", "reader")
    messages = [
        Message(0, offset="10", **about),
        Message(1, reader="reader", settled="1"),
        Message(2, offset="11", **about),
        Message(3, reader="reader", settled="9"),  # forged: it speaks of what comes later
        Message(4, reader="another", settled="4"),
        Message(5, offset="12", **about),
    ]
    box._messages = lambda consumer, unread: iter(messages)
    assert [letter.origin.offset for letter in box._read_range(None, None)] == [11, 12]
