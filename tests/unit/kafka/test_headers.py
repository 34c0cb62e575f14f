"""Headers are asked for once, and a message whose headers the client cannot tell has none."""

import ast
from pathlib import Path

import headrace
from headrace.kafka.dead_letter_topic import DeadLetterTopic
from headrace.kafka.headers import headers_of
from headrace.tools.records.producer import as_record


class Odd:
    """A message with a header name that is not UTF-8: the client raises, and a second question ends the process."""

    def __init__(self):
        self.asked = 0

    def headers(self):
        self.asked += 1
        assert self.asked == 1, "segmentation fault"
        raise SystemError("<method 'headers'> returned a result with an exception set")

    def timestamp(self):
        return 1, 5

    def topic(self):
        return "t"

    def key(self):
        return None

    def value(self):
        return b"v"

    def partition(self):
        return 0

    offset = partition

    def error(self):
        return None


def test_a_message_whose_headers_cannot_be_decoded_has_none():
    assert headers_of(Odd()) == ()
    assert as_record(Odd()).value == b"v"


def test_what_may_be_a_letter_or_a_mark_is_asked_once():
    box = DeadLetterTopic("127.0.0.1:1", {}, "dead")
    box._messages = lambda consumer, unread: iter([Odd()])
    assert box._read_range(None, None) == []


def test_nobody_else_asks_a_message_for_its_headers():
    root = Path(headrace.__file__).parent
    asking = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "headers"
    ]
    assert asking == []
