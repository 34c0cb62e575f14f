"""`headrace replay`: sends recorded records from a file again with their original timing."""

from __future__ import annotations

import sys
import tempfile
import time
from array import array
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from shutil import copyfileobj
from typing import IO, TYPE_CHECKING, Annotated

import typer

from headrace.cli import completion
from headrace.cli.options import Connection, with_connection
from headrace.cli.output.terminal import say
from headrace.errors import BadRecord, ConfigError
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.tools.records.replay import TimedRecord

EXAMPLES = """Examples:

  headrace consume clicks --from 1h --json > clicks.jsonl

  headrace replay clicks.jsonl --to clicks-test --speed 60x --times shifted

  headrace replay orders.jsonl --to orders --time at --key user --speed max"""
_NO_TIME = float("-inf")


class Times(StrEnum):
    KEPT = "kept"
    SHIFTED = "shifted"


@with_connection
def replay(
    connection: Connection,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Output of headrace consume --json, or one JSON object per line. Also .gz."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TOPIC", help="The target topic. It must exist.", autocompletion=completion.topics
        ),
    ],
    speed: Annotated[
        str, typer.Option(metavar="60x", help="Replay at this multiple of the original speed, or max.")
    ] = "1x",
    times: Annotated[
        Times,
        typer.Option(
            help="kept: keep the recorded event times. shifted: move all by the same amount, so that the first is now"
            " (with a speed above 1x the last)."
        ),
    ] = Times.KEPT,
    time_field: Annotated[
        str | None,
        typer.Option("--time", metavar="FIELD", help="JSON field of the value with the event time, such as event.at"),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="FIELD", help="For JSON objects: field to use as the key.")] = None,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="Send each record to its original partition.")
    ] = False,
    errors: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append failed records with the reason to this file.")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Seconds until an unacknowledged record counts as failed.", min=0.1),
    ] = 30,
) -> None:
    """Replay recorded records into a topic with their original timing, keys and headers.

    Records of consume --json are sent in order of time, and within a partition in file order; other JSON objects in
    file order.
    """
    from headrace.cli.output.progress import progress
    from headrace.cli.output.send_report import FailedRecordLog, report_totals, warn_about_retention
    from headrace.runtime.signals import stoppable
    from headrace.tools.records import replay as replaying
    from headrace.tools.records.producer import ProducerSettings, TopicProducer
    from headrace.tools.records.send import wait_for_delivery

    factor = replaying.speed(speed)
    settings = ProducerSettings(timeout=timeout)
    live = sys.stderr is not None and sys.stderr.isatty()
    with _seekable(file) as lines, FailedRecordLog(errors) as failures:
        starts, order = _scan_file(file, lines, time_field, key)
        times_known = [when for _, when in order if when != _NO_TIME]
        if not times_known and factor is not None and order:
            raise ConfigError(f"the records in {file} have no times", hint="--time FIELD, or --speed max")
        first = min(times_known, default=0.0)
        sender = TopicProducer(connection.client(), to, settings, on_failed=failures)
        shift = replaying.shift(times_known, factor, time.time() * 1000) if times is Times.SHIFTED else 0.0
        if times_known:
            warn_about_retention(sender, round(first + shift))
        say(f"{counted(len(order), 'record')}, {replaying.span(times_known)}", err=True)
        began = time.monotonic()
        with stoppable() as stop, report_totals(sender, failures, stop), progress() as show:
            for number, (line, when) in enumerate(order):
                due = began if factor is None or when == _NO_TIME else began + (when - first) / 1000 / factor
                if stop() or not wait_for_delivery(sender, due, stop):
                    break
                timed = _read_record(lines, starts[line], time_field, key)
                try:
                    now = time.time() * 1000
                    record = replaying.shifted(timed, shift, time_field, now) if shift else timed.record
                except BadRecord as error:
                    sender.refuse(timed.record, error.message)
                    continue
                sender.send(record if keep_partitions else replace(record, partition=None))
                if number % 100 == 0 and live:
                    show(f"{number + 1:,} of {len(order):,} records … {sender.acknowledged:,} acknowledged")


def _scan_file(
    file: Path, lines: IO[bytes], time_field: str | None, key: str | None
) -> tuple[array[int], list[tuple[int, float]]]:
    """The position of each line, and the order in which to send them. ConfigError names a line that is not a record."""
    from headrace.tools.records.replay import in_order, timed_record

    starts = array("q")
    keys: list[tuple[tuple[str, int | None], float | None]] = []
    position = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                timed = timed_record(line, time_field, key)
            except BadRecord as error:
                raise ConfigError(f"{file}, line {number}: {error.message}", hint="nothing was sent") from error
            starts.append(position)
            when = None if timed.at is None else timed.at.milliseconds
            keys.append(((timed.record.topic, timed.record.partition), when))
        position += len(line)
    return starts, in_order(keys)


def _read_record(lines: IO[bytes], start: int, time_field: str | None, key: str | None) -> TimedRecord:
    from headrace.tools.records.replay import timed_record

    lines.seek(start)
    return timed_record(lines.readline(), time_field, key)


@contextmanager
def _seekable(path: Path) -> Iterator[IO[bytes]]:
    """Open the file. A compressed one is unpacked to a temporary file, because lines are not read in file order."""
    from headrace.tools.records.line_input import open_input

    with open_input(path) as file:
        if path.suffix != ".gz" and file.seekable():
            yield file
            return
        with tempfile.TemporaryFile() as unpacked:
            copyfileobj(file, unpacked)
            unpacked.seek(0)
            yield unpacked
