"""What people read holds no control character of anybody's data, and counts in the singular and the plural."""

import json
import re
import traceback

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from headrace import events
from headrace.cli.main import _show
from headrace.cli.output import records, run_log, terminal
from headrace.connectors.console import Console
from headrace.errors import DataLoss, HeadraceError, RetriableError
from headrace.runtime.event_messages import describe_event
from headrace.support.tracebacks import in_user_code, short
from headrace.text import counted, json_text, printable, printable_lines
from headrace.tools.records.record import DECODERS, Record, to_json
from headrace.types import Batch, Range, TopicPartition

EVIL = "\x1b]0;owned\x07\x1b[2J\r\nerror: forged\x9b31m\u202egnp.exe\u2066\u2028\x00\x7f"
# Written out, not taken from the code that is tested: C0 but tab and newline, DEL, C1, separators, direction marks.
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
HOSTILE = st.text(st.one_of(st.sampled_from(EVIL), st.characters()), max_size=40)


@given(HOSTILE)
def test_printable_text_is_one_line_without_control_characters(text):
    shown = printable(text)
    assert not RAW.search(shown)
    assert "\n" not in shown
    shown.encode()


def test_ordinary_text_stays_as_it_is():
    text = "naïve café 日本語 🎉 a\tb"
    assert printable(text) == text


@given(HOSTILE)
def test_lines_after_the_first_cannot_pose_as_another_message(text):
    first, *rest = printable_lines(text).split("\n")
    assert not RAW.search(first)
    assert all(line.startswith("  ") for line in rest)


@given(HOSTILE)
def test_json_is_ascii_without_control_characters_and_reads_back(text):
    written = json_text({text: [text]})
    assert not RAW.search(written)
    assert "\n" not in written
    if not re.search("[\ud800-\udfff]", text):
        assert json.loads(written) == {text: [text]}


A = TopicPartition(f"clicks{EVIL}", 0)
BATCH = Batch(7, (Range(A, 0, 3),), {A.topic: "id"})
EVENTS = [
    events.PartitionsFound({A: 0}),
    events.PartitionsLeftOut((A,)),
    events.Noted(EVIL),
    events.GapFound(Range(A, 1, 2), EVIL, 2),
    events.MirrorFailed(OSError(EVIL)),
    events.Retrying(RetriableError(EVIL, hint=EVIL), 1, 1.0),
    events.Retrying(ValueError(EVIL), 1, 1.0),
    events.Stopping(EVIL),
    events.RunStopped(1, 1, DataLoss(EVIL, hint=EVIL)),
    events.BatchStarted(BATCH, replay=True),
]


@pytest.mark.parametrize("log_format", ["plain", "json"])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_no_event_brings_a_control_character_into_the_log(event, log_format, capsys):
    with run_log.console_observer("clicks", log_format) as observe:
        observe(event)
    lines = capsys.readouterr().out.split("\n")
    assert not any(RAW.search(line) or line.startswith("error:") for line in lines)
    assert log_format == "json" or not RAW.search(describe_event(event))


WORKER = """Traceback (most recent call last):
  File "/app/clicks.py", line 12, in shout{evil}
    return text.upper()
ValueError: {evil}
"""


@given(HOSTILE)
def test_an_error_in_short_and_its_frames_hold_no_control_character(text):
    texts = [text, f"An error occurred while calling o1.x.\n: java.io.IOException: {text}"]
    texts.append(WORKER.format(evil=text.replace("\n", " ")))
    for error in map(ValueError, texts):
        assert not RAW.search(short(error))
        assert "\n" not in short(error)
        assert not RAW.search(in_user_code(error))


@given(HOSTILE)
def test_an_error_that_nobody_catches_holds_no_control_character(text):
    error = HeadraceError(text, hint=text)
    for line in [*traceback.format_exception(error), repr(error)]:
        assert not RAW.search(line), repr(line)
    assert error.message == text


@given(HOSTILE)
def test_an_error_on_the_terminal_holds_no_control_character(text):
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer, "echo", lambda line="", **_: said.append(line))
        _show(f"clicks[0]: {text}", text)
        terminal.say(text, text)
    for line in said:
        assert not RAW.search(line)
    assert all(line.startswith("  ") for shown in said[:2] for line in shown.split("\n")[1:])


@given(st.binary(max_size=60), HOSTILE.filter(lambda text: not re.search("[\ud800-\udfff]", text)))
def test_a_record_is_printed_without_control_characters(raw, name):
    record = Record(name, 0, 1, 0, "create", raw, raw + EVIL.encode(), ((name, raw), ("h", EVIL.encode())))
    printer = records.Printer("text", "text", records.COLUMNS, "null", "\t", as_json=False)
    line = printer._line(record)
    assert not RAW.search(line)
    assert "\n" not in line
    assert not RAW.search(to_json(record))


@given(HOSTILE.filter(lambda text: not re.search("[\ud800-\udfff]", text)))
def test_json_values_are_printed_without_control_characters(text):
    raw = json.dumps({"a": text}, ensure_ascii=False).encode()
    assert not RAW.search(DECODERS["json"](raw))


def test_rows_are_printed_without_control_characters(capsys):
    class Rows:
        columns = ("a",)

        def limit(self, most):
            return self

        drop = toArrow = lambda self, *_: self

        def to_pylist(self):
            return [{f"name{EVIL}": EVIL, "raw": EVIL.encode()}]

    Console().write(BATCH, Rows())
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 2
    assert not RAW.search(out)
    assert "forged" in out


def test_a_table_shows_names_without_control_characters(capsys):
    terminal.table(["group"], [[EVIL], ["[bold]x[/]"]])
    out = capsys.readouterr().out
    assert not RAW.search(out)
    assert "forged" in out
    assert "[bold]x[/]" in out


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "record", "0 records"),
        (1, "record", "1 record"),
        (2000, "record", "2,000 records"),
        (2, "batch", "2 batches"),
    ],
)
def test_nouns_are_counted_in_the_singular_and_the_plural(number, noun, said):
    assert counted(number, noun) == said


ONE = Batch(1, (Range(TopicPartition("t", 0), 0, 1),), {})


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (events.BatchStarted(ONE, replay=True), "repeating its 1 offset"),
        (events.BadRecordsDropped(ONE, 1), "1 bad record dropped"),
        (events.RecordsQuarantined(ONE, 1), "1 record to the dead letters"),
        (events.RunStopped(1, 1, None), "stopped after 1 batch, 1 record"),
        (events.PartitionsFound({TopicPartition("t", 0): 0}), "found 1 new partition: t[0] from 0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_thing_is_reported_in_the_singular(event, said):
    assert said in describe_event(event)
