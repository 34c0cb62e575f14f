"""What a run looks like to people and to machines."""

import io
import json
import typing

import pytest
from rich.console import Console

from headrace import events
from headrace.cli.output import live_line, run_log
from headrace.errors import DataLoss, RetriableError
from headrace.runtime.event_messages import describe_event
from headrace.tools.check import Report
from headrace.types import Batch, Range, TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
BATCH = Batch(7, (Range(A, 0, 1500), Range(B, 3, 4)), {"clicks": "id"})

SAID = [
    (events.RunStarted("exactly-once", ("write",), {A: 3}), "started: exactly-once (write)"),
    (events.PartitionsFound({A: 0, B: 9}), "found 2 new partitions: clicks[0] from 0, clicks[1] from 9"),
    (events.PartitionsLeftOut((A, B)), "not read, as the source names others: clicks[0], clicks[1]"),
    (events.Noted("one broker is named"), "note: one broker is named"),
    (events.BatchStarted(BATCH, replay=True), "batch 7: was pending, repeating its 1,501 offsets"),
    (events.BatchStarted(BATCH, replay=False), None),
    (events.BatchDone(BATCH, 0.5, 12345), "batch 7: 1,501 offsets in 0.50 s (3,002/s), lag 12,345"),
    (
        events.BatchDone(BATCH, 0.5, 12345, 1000, 1),
        "batch 7: 1,000 records, 1 row written in 0.50 s (2,000/s), lag 12,345",
    ),
    (
        events.BatchDone(BATCH, 0.5, 0, 1000, 1, events.Phases(0.02, 0.001, 0.4, 0.1), 4096, 1.25),
        (
            "batch 7: 1,000 records, 1 row written in 0.50 s (2,000/s), lag 0, metadata 0.02 s, plan 0.00 s, "
            "write 0.40 s, commit 0.10 s, scheduling delay 1.25 s"
        ),
    ),
    (
        events.BatchDone(BATCH, 0.5, 0, produce_delay=events.ProduceDelay(0.25, 2.5, 3600)),
        ("batch 7: 1,501 offsets in 0.50 s (3,002/s), lag 0, produce delay p50 0.25 s, p99 2.50 s, max 3,600.00 s"),
    ),
    (events.BadRecordsDropped(BATCH, 3), "batch 7: 3 bad records dropped"),
    (events.RecordsQuarantined(BATCH, 1200), "batch 7: 1,200 records to the dead letters"),
    (
        events.RecordsQuarantined(BATCH, 1200, 900),
        "batch 7: 1,200 records to the dead letters, 900 of them without their bytes (max_bytes)",
    ),
    (events.BatchSkipped(BATCH), "batch 7: abandoned, 1,501 offsets may be missing (at-most-once)"),
    (
        events.GapFound(Range(A, 10, 1510), "the broker has deleted these records", 1510),
        "GAP: clicks[0] [10, 1510), 1,500 offsets: the broker has deleted these records; continuing at 1,510",
    ),
    (events.MirrorFailed(OSError("away")), "the Kafka group of the mirror was not updated: away"),
    (events.CaughtUp(7), "caught up after batch 7"),
    (
        events.Retrying(RetriableError("Kafka does not answer", hint="headrace doctor"), 2, 1.0),
        "retry 2 in 1.0 s: Kafka does not answer (hint: headrace doctor)",
    ),
    (events.Retrying(ValueError("boom"), 1, 0.5), "retry 1 in 0.5 s: boom"),
    (
        events.BatchTimedOut(BATCH, 30.0, 2),
        "batch 7: timed out after 30 s, its jobs were cancelled (timeouts: 2)",
    ),
    (events.Stopping("SIGTERM"), "stopping: SIGTERM; the batch in flight is finished first"),
    (events.RunStopped(2, 3000, None), "stopped after 2 batches, 3,000 records"),
    (events.RunStopped(2, 3000, None, 2990), "stopped after 2 batches, 3,000 records, 2,990 rows written"),
    (events.RunStopped(2, 3000, DataLoss("gone")), "failed after 2 batches, 3,000 records"),
]


def test_every_event_there_is_has_its_words():
    assert {type(event) for event, _ in SAID} == set(typing.get_args(events.Event))


@pytest.mark.parametrize(("event", "said"), SAID, ids=lambda value: type(value).__name__)
def test_an_event_is_reported_in_a_line(event, said):
    assert describe_event(event) == said


@pytest.mark.parametrize("event", [event for event, _ in SAID], ids=lambda event: type(event).__name__)
def test_an_event_is_one_json_object_that_names_itself_and_its_pipeline(event):
    back = json.loads(json.dumps(run_log.record("clicks", event)))
    assert back["event"] == type(event).__name__
    assert back["pipeline"] == "clicks"
    assert back["time"].endswith("+00:00")


def test_a_batch_in_json_has_its_exact_ranges_and_the_count():
    batch = run_log.record("clicks", events.BatchDone(BATCH, 0.5, 0))["batch"]
    assert batch == {
        "id": 7,
        "ranges": [["clicks", 0, 0, 1500], ["clicks", 1, 3, 4]],
        "topic_ids": {"clicks": "id"},
        "offsets": 1501,
    }


def test_a_batch_in_json_has_its_phases_and_all_that_was_measured():
    delay = events.ProduceDelay(0.25, 2.5, 3600)
    done = events.BatchDone(BATCH, 0.5, 3, 1000, 990, events.Phases(0.02, 0.001, 0.4, 0.1), 4096, 1.25, delay)
    back = json.loads(json.dumps(run_log.record("clicks", done)))
    assert back["phases"] == {"metadata": 0.02, "plan": 0.001, "write": 0.4, "commit": 0.1}
    assert (back["records"], back["rows"], back["bytes"], back["scheduling_delay"]) == (1000, 990, 4096, 1.25)
    assert back["produce_delay"] == {"p50": 0.25, "p99": 2.5, "max": 3600}


def test_an_error_in_json_has_its_type_message_and_hint():
    failed = events.RunStopped(0, 0, DataLoss("gone", hint="look"))
    assert run_log.record("p", failed)["error"] == {"type": "DataLoss", "message": "gone", "hint": "look"}


def test_positions_in_json_are_keyed_by_partition():
    assert run_log.record("p", events.PartitionsFound({A: 4}))["positions"] == {"clicks[0]": 4}


def test_a_retry_shows_where_in_the_users_code_it_failed():
    try:
        raise ValueError("boom")
    except ValueError as error:
        said = describe_event(events.Retrying(error, 1, 0.5))
    assert said.startswith("retry 1 in 0.5 s: boom\n")
    assert __file__ in said


def test_a_retry_after_a_failure_on_a_worker_shows_file_and_line_of_the_users_function():
    worker = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/app/clicks.py", line 12, in shout
    return text.upper()
AttributeError: 'NoneType' object has no attribute 'upper'

JVM stacktrace:
org.apache.spark.SparkException: Job aborted"""
    said = describe_event(events.Retrying(RuntimeError(worker), 1, 0.5))
    assert said.startswith("retry 1 in 0.5 s: AttributeError: 'NoneType' object has no attribute 'upper'")
    assert '"/app/clicks.py", line 12, in shout' in said
    assert "org.apache.spark" not in said


def test_log_lines_start_with_time_and_pipeline(capsys):
    with run_log.console_observer("clicks", "plain") as observe:
        observe(events.CaughtUp(3))
        observe(events.BatchStarted(BATCH, replay=False))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.partition(" ")[2] == "clicks caught up after batch 3"


def test_without_a_terminal_auto_means_plain_lines(capsys):
    with run_log.console_observer("clicks", "auto") as observe:
        observe(events.CaughtUp(3))
    assert capsys.readouterr().out.endswith("clicks caught up after batch 3\n")


def test_json_lines_are_one_object_each(capsys):
    with run_log.console_observer("clicks", "json") as observe:
        for event, _ in SAID:
            observe(event)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == [type(event).__name__ for event, _ in SAID]


def shown(line):
    return " ".join(lines_of(line, 200).split())


def lines_of(line, width):
    out = io.StringIO()
    Console(file=out, width=width).print(line)
    return out.getvalue()


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_the_live_line_shows_how_long_the_start_takes():
    clock = Clock()
    line = live_line._Line("clicks", clock)
    clock.now += 12
    assert shown(line) == "clicks starting 12 s"


def test_the_live_line_shows_rate_total_lag_and_last_commit():
    line = live_line._Line("clicks", Clock())
    line.take(events.RunStarted("exactly-once", ("write",), {}))
    assert shown(line) == "clicks running 0 records/s 0 records lag ? last commit never"
    line.take(events.BatchDone(BATCH, 0.5, 12345, 1000, 990))
    line.take(events.BatchDone(BATCH, 1.5, 45, 1000, 1000))
    text = shown(line)
    assert text.startswith("clicks running 1,000 records/s 2,000 records 1,990 rows lag 45 last commit ")
    assert "never" not in text


def test_the_rate_is_that_of_the_batches_and_not_of_the_wait_between_them():
    clock = Clock()
    line = live_line._Line("clicks", clock)
    line.take(events.RunStarted("exactly-once", ("write",), {}))
    line.take(events.BatchDone(BATCH, 0.01, 0, 100, 100))
    clock.now += 5
    assert "10,000 records/s" in shown(line)
    clock.now += 6
    assert " 0 records/s" in shown(line)


def test_the_rate_of_the_last_batch_stays_while_a_long_one_is_in_flight():
    clock = Clock()
    line = live_line._Line("clicks", clock)
    line.take(events.RunStarted("exactly-once", ("write",), {}))
    line.take(events.BatchDone(BATCH, 10.0, 500, 100, 100))
    line.take(events.BatchDone(BATCH, 10.0, 400, 200, 200))
    line.take(events.BatchStarted(BATCH, replay=False))
    clock.now += 60
    assert " 20 records/s" in shown(line)
    clock.now += 60
    assert " 20 records/s" in shown(line)


def test_a_narrow_terminal_shows_every_number_of_the_live_line_in_full():
    clock = Clock()
    line = live_line._Line("clicks", clock)
    line.take(events.RunStarted("exactly-once", ("write",), {}))
    line.take(events.BatchDone(BATCH, 25.0, 12_345, 1_204_332, 1_203_990))
    line.take(events.BatchStarted(BATCH, replay=False))
    clock.now += 3
    text = lines_of(line, 80)
    assert len(text.splitlines()) == 2
    assert max(map(len, text.splitlines())) <= 80
    for part in ("48,173 records/s", "1,204,332 records", "1,203,990 rows", "lag 12,345", "batch 7 for 3 s"):
        assert part in text


def test_the_live_line_shows_where_the_time_goes():
    line = live_line._Line("clicks", Clock())
    line.take(events.RunStarted("exactly-once", ("write",), {}))
    line.take(events.BatchDone(BATCH, 3.0, 0, 100, 100, events.Phases(0.2, 0.001, 2.4, 0.4)))
    line.take(events.BatchDone(BATCH, 3.0, 0, 100, 100, events.Phases(0.2, 0.001, 2.4, 0.4)))
    assert " lag 0 write 80%, commit 13%, metadata 7% last commit " in shown(line)


def test_the_live_line_shows_the_newest_produce_delay_that_was_measured():
    line = live_line._Line("clicks", Clock())
    line.take(events.RunStarted("exactly-once", ("write",), {}))
    line.take(events.BatchDone(BATCH, 3.0, 0, 100, 100, produce_delay=events.ProduceDelay(0.25, 2.5, 2.6)))
    line.take(events.BatchDone(BATCH, 3.0, 0, 100, 100))
    assert " lag 0 delay p50 0.2 s, p99 2.5 s last commit " in shown(line)
    line.take(events.BatchDone(BATCH, 3.0, 0, 100, 100, produce_delay=events.ProduceDelay(150, 7300, 900_000)))
    assert " delay p50 2 min, p99 2 h " in shown(line)


def test_the_live_line_shows_the_batch_in_flight_and_its_age():
    clock = Clock()
    line = live_line._Line("clicks", clock)
    line.take(events.RunStarted("exactly-once", ("write",), {}))
    line.take(events.BatchStarted(BATCH, replay=False))
    clock.now += 34
    assert "batch 7 for 34 s" in shown(line)
    line.take(events.BatchDone(BATCH, 34.0, 0, 1, 1))
    assert "batch" not in shown(line)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (events.CaughtUp(7), "caught up"),
        (events.Retrying(ValueError(), 1, 1.0), "retrying 0 s"),
        (events.Stopping("SIGTERM"), "stopping 0 s"),
        (events.RunStopped(1, 1, None), "stopped"),
        (events.RunStopped(1, 1, ValueError()), "failed"),
    ],
    ids=lambda value: str(value).partition("(")[0],
)
def test_the_live_line_shows_the_state(event, state):
    line = live_line._Line("clicks")
    line.take(event)
    assert f"clicks {state} " in shown(line)


REPORT = Report("clicks", "exactly-once", "because", ("begin", "write"), "from", "to", "there", ("a int",), ("note",))


def test_a_check_is_printed_for_people(capsys):
    run_log.report(REPORT, as_json=False)
    out = capsys.readouterr().out
    assert out.startswith("clicks: exactly-once: because\n")
    assert "begin → write" in out
    assert "a int" in out
    assert "note" in out


def test_a_check_is_printed_for_machines(capsys):
    run_log.report(REPORT, as_json=True)
    assert json.loads(capsys.readouterr().out)["steps"] == ["begin", "write"]
