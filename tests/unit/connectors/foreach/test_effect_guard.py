"""Which message an effect belongs to, and what happens to its mark when the effect fails."""

import pytest

from headrace.connectors.foreach.effect_guard import EffectGuard
from headrace.core.dead_letters import RecordId
from headrace.errors import ConfigError, RetriableError
from headrace.spark import tasks

ORIGIN = RecordId("clicks", 2, 40)


class Marks:
    """The marks of one pipeline, in memory."""

    def __init__(self):
        self.marked, self.calls, self.failing = set(), [], False

    def connect(self):
        self.calls.append("connect")
        return self

    def find_marked(self, messages):
        if self.failing:
            raise RetriableError("the store does not answer")
        return self.marked & set(messages)

    def mark(self, message):
        self.calls.append(f"mark {message}")
        if message in self.marked:
            return False
        self.marked.add(message)
        return True

    def unmark(self, message):
        self.calls.append(f"unmark {message}")
        self.marked.discard(message)

    def close(self):
        self.calls.append("close")


@pytest.fixture
def marks():
    marks = Marks()
    yield marks
    tasks.evict(("marks", marks))


def guard(marks, mark="after", key=(), *, numbered=True):
    return EffectGuard(marks, mark, key, {"clicks": "id1"}, numbered)


@pytest.mark.parametrize(
    ("key", "origin", "number", "row", "message"),
    [
        ((), ORIGIN, 0, {}, "id1:2:40:0"),
        ((), ORIGIN, 3, {}, "id1:2:40:3"),
        ((), RecordId("views", 0, 1), 0, {}, ":0:1:0"),  # a topic without a known id
        (("user",), ORIGIN, 3, {"user": "ann"}, 'key:["ann"]'),
        (("user", "day"), None, 0, {"user": "ann", "day": 7}, 'key:["ann", 7]'),
        (("user",), ORIGIN, 0, {"user": None}, None),
    ],
)
def test_a_message_is_identified_by_its_record_or_by_its_key(marks, key, origin, number, row, message):
    assert guard(marks, key=key).message(origin, number, row) == message


def test_long_keys_are_hashed_and_stay_different(marks):
    first, second = (guard(marks, key=("user",)).message(ORIGIN, 0, {"user": "a" * 300 + end}) for end in "xy")
    assert len(first) == len(second) == len("key:") + 64
    assert first != second


@pytest.mark.parametrize(
    ("origin", "number", "numbered", "message"),
    [(None, 0, True, "without its origin"), (ORIGIN, 1, False, "several rows come from one record")],
)
def test_rows_that_cannot_be_told_from_each_other_are_refused(marks, origin, number, numbered, message):
    with pytest.raises(ConfigError, match=message):
        guard(marks, numbered=numbered).message(origin, number, {})


@pytest.mark.parametrize(
    ("mark", "order"), [("after", ["connect", "effect", "mark m"]), ("before", ["connect", "mark m", "effect"])]
)
def test_the_mark_is_set_after_the_effect_or_before_it(marks, mark, order):
    guard(marks, mark).run_once("m", lambda: marks.calls.append("effect"))
    assert marks.calls == order
    assert marks.marked == {"m"}


@pytest.mark.parametrize("mark", ["after", "before"])
@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_an_effect_that_raises_is_not_marked(marks, mark, failure):
    def effect():
        raise failure

    with pytest.raises(failure):
        guard(marks, mark).run_once("m", effect)
    assert marks.marked == set()


def test_another_worker_that_marked_the_message_first_has_its_effect(marks):
    marks.marked.add("m")
    guard(marks, "before").run_once("m", lambda: marks.calls.append("effect"))
    assert "effect" not in marks.calls


def test_a_client_is_kept_until_the_store_does_not_answer(marks):
    guarded = guard(marks)
    assert guarded.find_done(["m"]) == set()
    assert guarded.find_done(["m"]) == set()
    assert marks.calls == ["connect"]
    marks.failing = True
    with pytest.raises(RetriableError):
        guarded.find_done(["m"])
    marks.failing = False
    assert guarded.find_done(["m"]) == set()
    assert marks.calls.count("connect") == 2
