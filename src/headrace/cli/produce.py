"""`headrace produce`: sends lines or generated samples to a topic."""

from __future__ import annotations

import struct
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completion
from headrace.cli.options import Connection, expand_environment, with_connection
from headrace.cli.output.terminal import say
from headrace.errors import BadRecord, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from headrace.kafka.headers import Headers
    from headrace.tools.records.line_input import Lines
    from headrace.tools.records.record import Record
    from headrace.tools.records.send import InvalidLine

_DEFAULT_RATE = 10.0


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Form(StrEnum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"


class SampleName(StrEnum):
    CLICKS = "clicks"
    EVENTS = "events"
    TRADES = "trades"
    WEBLOGS = "weblogs"
    WORDS = "words"


_ACKS = "all (default): wait for all in-sync replicas. 1: wait for the leader only. 0: do not wait."
EXAMPLES = """Examples:

  echo 'ann:{"page": "/"}' | headrace produce clicks --key-separator :

  headrace produce clicks --file day.json.gz --format json

  headrace produce clicks --file day.json --avro click.avsc --registry http://localhost:8081

  headrace produce clicks --sample clicks --rate 100"""


@with_connection
def produce(
    connection: Connection,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="The topic. It must exist: headrace topics create.", autocompletion=completion.topics
        ),
    ],
    file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Read lines from this file, also .gz. May be repeated. Default: standard input."
        ),
    ] = None,
    sample: Annotated[SampleName | None, typer.Option(help="Generate sample records instead of reading lines.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Separator between the key and the value of a line.")
    ] = None,
    null: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text that means a null key or value (a tombstone).")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="Format of values. json is validated.")] = Form.TEXT,
    key_form: Annotated[Form, typer.Option("--key-format", help="Format of keys.")] = Form.TEXT,
    avro: Annotated[
        Path | None, typer.Option(metavar="FILE.avsc", help="Encode JSON values as Avro with this schema.")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --avro: register the schema here and send its id in each record. http://user:${PASSWORD}@…",
            callback=expand_environment,
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --registry: subject of the schema. Default: TOPIC-value.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every record. May be repeated.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Send to this partition. Default: by key hash (murmur2), as Java's producer.", min=0
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Records per second. Default: unlimited; 10 for --sample without --count.", min=0.001
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="Stop after N records.", min=1)] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --sample: the same seed generates the same records. Default: 1."),
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --sample: the first event time, or 2d for two days ago.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="With --start: time between two events. Default: 1s.")
    ] = None,
    malformed: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION", help="With --sample weblogs: fraction of truncated lines. Default: 0.", min=0, max=1
        ),
    ] = None,
    acks: Annotated[Acks | None, typer.Option(help=_ACKS)] = None,
    compression: Annotated[
        Compression | None, typer.Option(help="snappy and lz4 are fast, gzip and zstd compress better. Default: none.")
    ] = None,
    linger: Annotated[
        float | None, typer.Option(metavar="MS", help="Milliseconds to wait for a batch to fill. Default: 5.", min=0)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Maximum size of a batch in bytes.", min=1)
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Seconds until an unacknowledged record counts as failed.", min=0.1),
    ] = 30,
    errors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append failed records with the reason to this file. headrace replay sends them again."
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the partition and offset of each record.")
    ] = False,
) -> None:
    """Send lines to a topic, one record per line. Exit code 1 if any record failed."""
    from headrace.cli.output.send_report import FailedRecordLog, OffsetPrinter, report_totals, warn_about_retention
    from headrace.runtime.signals import stoppable
    from headrace.tools.records.line_input import Lines, from_files, from_stdin
    from headrace.tools.records.producer import ProducerSettings, TopicProducer
    from headrace.tools.records.send import send_all

    if sample and (file or key_separator is not None or null is not None):
        raise ConfigError(
            "--sample generates its own keys and values", hint="leave out --file, --key-separator and --null"
        )
    _check_sample(sample, start, every, seed, malformed)
    if key_separator == "":
        raise ConfigError("--key-separator must not be empty", hint="--key-separator :")
    separator, null_text = (None if text is None else text.encode() for text in (key_separator, null))
    encode = _avro(topic, avro, registry, subject) if avro or registry or subject else None
    if encode is not None and (sample or form is not Form.TEXT):
        raise ConfigError(
            "--avro encodes lines of JSON and cannot be combined with --sample or --format",
            hint="leave out --sample and --format",
        )
    lines = Lines(topic, separator, null_text, key_form.value, form.value, _headers(header), partition, encode)
    first = _time(start) if start else None
    if sample and rate is None and count is None:
        rate = _DEFAULT_RATE
    settings = ProducerSettings(acks, compression, timeout, linger, batch_size)
    with FailedRecordLog(errors) as failures:
        # Before signals stop gracefully: nothing is sent yet, so Ctrl-C may end a wait for a silent server at once.
        sender = TopicProducer(connection.client(), topic, settings, OffsetPrinter() if verbose else None, failures)
        if first is not None:
            warn_about_retention(sender, int(first.timestamp() * 1000))
        if not sample and not file and sys.stdin is not None and sys.stdin.isatty():
            say("type one record per line; Ctrl-D ends", err=True)
        with stoppable() as stop, report_totals(sender, failures, stop):
            records: Iterator[Record | InvalidLine | None]
            if sample:
                sample_seed = 1 if seed is None else seed
                records = _samples(sample, sample_seed, first, _every(every or "1s"), malformed or 0, lines)
            else:
                records = _to_records(lines, from_files(file) if file else from_stdin(stop))
            send_all(sender, records, stop, None if rate is None else _due_times(rate), count)


def _avro(topic: str, schema: Path | None, registry: str | None, subject: str | None) -> Callable[[bytes], bytes]:
    from headrace.formats.avro import Avro
    from headrace.formats.avro.json_encoding import encoder
    from headrace.formats.schema_registry import SchemaRegistry

    if schema is None:
        raise ConfigError("--registry and --subject need --avro", hint="--avro click.avsc")
    text = str(Avro(schema, registry=registry, subject=subject).schema)  # validated
    encode = encoder(text)
    if registry is None:
        return encode
    # Confluent's wire format
    head = struct.pack(">bI", 0, SchemaRegistry(registry).register_schema(subject or f"{topic}-value", text))
    return lambda line: head + encode(line)


def _check_sample(
    sample: SampleName | None, start: str | None, every: str | None, seed: int | None, malformed: float | None
) -> None:
    """Refuse options that would have no effect."""
    given = {"--start": start, "--every": every, "--seed": seed, "--malformed": malformed}
    names = [option for option, value in given.items() if value is not None]
    if names and sample is None:
        raise ConfigError(f"{names[0]} needs --sample", hint=f"--sample clicks, or leave out {names[0]}")
    if malformed is not None and sample is not SampleName.WEBLOGS:
        raise ConfigError("--malformed needs --sample weblogs", hint="--sample weblogs, or leave out --malformed")
    if every is not None and start is None:
        raise ConfigError("--every needs --start", hint="--start 2d, or --rate for records per second")


def _to_records(
    lines: Lines, raw_lines: Iterator[bytes] | Iterator[bytes | None]
) -> Iterator[Record | InvalidLine | None]:
    from headrace.tools.records.send import InvalidLine

    for line in raw_lines:
        try:
            yield None if line is None else lines.record(line)
        except BadRecord as error:
            yield InvalidLine(lines.raw_record(line or b""), error.message)


def _samples(
    name: SampleName, seed: int, start: datetime | None, every: timedelta, malformed: float, lines: Lines
) -> Iterator[Record]:
    from headrace.tools.records.record import Record
    from headrace.tools.samples import SAMPLES, as_they_come, spaced, weblogs

    times = as_they_come() if start is None else spaced(start, every)
    samples = weblogs(seed, times, malformed) if name is SampleName.WEBLOGS else SAMPLES[name](seed, times)
    try:
        for key, value, headers, at in samples:
            when = int(at.timestamp()) * 1000 + at.microsecond // 1000  # truncated, as the times in the values are
            yield Record(lines.topic, lines.partition, None, when, "create", key, value, (*headers, *lines.headers))
    except OverflowError as error:
        raise ConfigError(
            "event times must not be later than the year 9999", hint="use an earlier --start or a smaller --count"
        ) from error


def _due_times(rate: float) -> Callable[[int], float]:
    return lambda number: number / rate


def _headers(given: list[str] | None) -> Headers:
    """The headers as a list, because Kafka allows a name to occur twice."""
    found = []
    for item in given or ():
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--header: expected NAME=VALUE, got {item!r}", hint="--header source=shop")
        found.append((name, value.encode()))
    return tuple(found)


def _time(text: str) -> datetime:
    from headrace.tools.offsets.targets import parse

    try:
        found = parse(text, datetime.now(UTC)).time
    except ConfigError:
        found = None
    if found is None:
        raise ConfigError(
            f"--start: expected a time, got {text!r}", hint="--start 2026-11-01T12:00:00Z, or 2d for two days ago"
        )
    return found


def _every(text: str) -> timedelta:
    from headrace.support.durations import duration

    found = duration(text)
    if found is None:
        raise ConfigError(f"--every: expected a duration, got {text!r}", hint="--every 20s")
    return found
