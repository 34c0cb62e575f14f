"""`headrace consume`: prints records of topics, one per line."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completion
from headrace.cli.options import Connection, Profile, Until, expand_environment, spark_options, with_connection
from headrace.cli.output.terminal import say, say_progress
from headrace.cli.produce import Form
from headrace.cli.topics import regex
from headrace.errors import ConfigError
from headrace.runtime.signals import stoppable
from headrace.text import counted
from headrace.tools.records.decoded_consumer import DecodedRecordConsumer, format_like, format_of, is_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.cli.output.records import Printer
    from headrace.core.format import Format
    from headrace.tools.records.decoded_query import DecodedRecordQuery
    from headrace.tools.records.start_positions import ConsumePlan, StartAt

EXAMPLES = """Examples:

  headrace consume clicks

  headrace consume clicks --from 10m --follow

  headrace consume clicks --from -5 --verbose

  headrace consume clicks --from 1h --json > clicks.jsonl

  headrace consume clicks --from clicks:0:1200 --count 1"""


class ValueForm(StrEnum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"
    CSV = "csv"
    AVRO = "avro"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPARK_FORMS = (ValueForm.CSV, ValueForm.AVRO)


@with_connection
def consume(
    connection: Connection,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Topics to read.", autocompletion=completion.topics)
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Topics whose whole name matches, also new ones.")
    ] = None,
    begin: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="earliest, latest, -N (the last N of each partition), a time, 1h (an hour ago), or"
            " TOPIC:PARTITION:OFFSET (may be repeated). Default: earliest, with --follow latest.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep reading new records until Ctrl-C.")] = False,
    until: Annotated[
        Until | None, typer.Option(help="caught-up: stop at the current end of the topics. This is the default.")
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="Stop after N records.", min=1)] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Only this partition. May be repeated. Not with --group.", min=0),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Join this consumer group: start at its committed offsets and commit those of printed records.",
            autocompletion=completion.groups,
        ),
    ] = None,
    form: Annotated[
        ValueForm,
        typer.Option("--format", help="Format of values. json is validated; csv and avro are printed as JSON."),
    ] = ValueForm.TEXT,
    key_form: Annotated[Form, typer.Option("--key-format", help="Format of keys.")] = Form.TEXT,
    columns: Annotated[
        str | None, typer.Option(metavar="DDL", help="Columns of json or csv values: 'user STRING, n INT'")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help='Only records that match a SQL condition: "n > 10 AND _kafka.partition = 0"'),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Schema registry of avro values: http://user:${PASSWORD}@…", callback=expand_environment
        ),
    ] = None,
    schema: Annotated[Path | None, typer.Option(metavar="FILE", help="Schema file (.avsc) of avro values.")] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:NAME]",
            help="Decode as the source of this pipeline does.",
            autocompletion=completion.pipelines,
        ),
    ] = None,
    profile: Profile = None,
    spark: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A Spark setting. ${NAME} is read from the environment. May be repeated."
        ),
    ] = None,
    show: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Fields to print before the value: topic, partition, offset, timestamp, key, headers."
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("-v", "--verbose", help="Print all of these fields."),
    ] = False,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print the key, this separator and the value.")
    ] = None,
    null: Annotated[str, typer.Option(metavar="TEXT", help="Text for a null key or value (a tombstone).")] = "null",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per record, with all fields. headrace replay reads it."),
    ] = False,
) -> None:
    """Print records from topics. Reads to the current end; --follow keeps reading.

    Reads only committed records, and commits no offsets without --group.
    Control characters and bytes that are not UTF-8 are escaped. --json is lossless.
    --columns, --where, --pipeline and the formats csv and avro decode the records with Spark.
    """
    from headrace.cli.output.records import Printer
    from headrace.tools.records.start_positions import ConsumePlan, TopicSelection

    if sys.stdout is None:
        raise ConfigError("standard output is closed", hint="> FILE")
    if bool(topics) == bool(pattern):
        got = "both" if topics else "neither"
        raise ConfigError(
            f"expected topic names or --pattern, got {got}",
            hint="headrace consume clicks, or headrace consume --pattern 'clicks.*'",
        )
    if follow and until:
        raise ConfigError("--follow and --until caught-up cannot be combined", hint="leave out one of them")
    if group == "":
        raise ConfigError("--group must not be empty", hint="--group report, or leave out --group")
    if group and partition:
        raise ConfigError(
            "--group and --partition cannot be combined: the group assigns the partitions", hint="leave out one of them"
        )
    start = _start(begin or ["latest" if follow else "earliest"])
    if start.offsets and (partition or group or pattern):
        raise ConfigError(
            "--from TOPIC:PARTITION:OFFSET cannot be combined with --partition, --group or --pattern",
            hint="leave them out",
        )
    described = bool(columns or registry or schema) or form in _SPARK_FORMS
    if pipeline and described:
        raise ConfigError(
            "--pipeline already defines the format of the values",
            hint="leave out --columns, --registry, --schema and --format",
        )
    if group and (described or pipeline or where):
        raise ConfigError(
            "--group cannot be combined with options that decode with Spark",
            hint="leave out --group, or --columns, --where, --pipeline, --registry, --schema, csv and avro",
        )
    fmt = None
    if pipeline:
        fmt = format_like(pipeline, topics or [], profile)
    elif described or where:
        fmt = format_of(form.value, columns, registry, schema)
    shown = form.value if fmt is None or is_plain(fmt) else "json"
    printer = Printer.of(shown, key_form.value, show, null, key_separator, verbose=verbose, as_json=as_json)
    wanted = TopicSelection(tuple(topics or ()), regex(pattern), frozenset(partition or ()))
    plan = ConsumePlan(connection.client(), wanted, start, follow=follow)
    decoded = (
        None if fmt is None else DecodedRecordConsumer(plan, partial(_query, connection, fmt, where=where, spark=spark))
    )
    with stoppable() as stop:
        if decoded is not None:
            _print_decoded(decoded, printer, stop, count, follow=follow)
        else:
            _print(connection, plan, printer, stop, count, group, follow=follow)
    hint = "" if follow or count is not None or stop() else "; --follow waits for more"
    say(f"{counted(printer.printed, 'record')}{hint}", err=True)
    if printer.wrong:
        first = f"; the first: {printer.first_wrong}" if printer.first_wrong else ""
        say(f"{counted(printer.wrong, 'record')} of another format{first}", err=True)
        raise typer.Exit(1)


def _print(
    connection: Connection,
    plan: ConsumePlan,
    printer: Printer,
    stop: Callable[[], bool],
    count: int | None,
    group: str | None,
    *,
    follow: bool,
) -> None:
    from headrace.tools.records.consumer import RecordConsumer

    with RecordConsumer(connection.client(), plan, group=group, follow=follow) as consumer:
        for records in consumer.batches():
            processed = printer.print(records, None if count is None else count - printer.printed)
            consumer.mark_printed(records[:processed])
            if stop() or printer.printed == count:
                return


def _print_decoded(
    decoded: DecodedRecordConsumer, printer: Printer, stop: Callable[[], bool], count: int | None, *, follow: bool
) -> None:
    def remaining() -> int | None:
        return None if count is None else count - printer.printed

    # Records in another format print no line, so more records than lines may be needed.
    limit = remaining if printer.key_format != "json" else lambda: None
    for records in decoded.batches(limit, stop, follow=follow):
        printer.print(records, remaining())
        if printer.printed == count:
            break
    printer.wrong += decoded.left_out
    printer.first_wrong = decoded.first_bad


def _start(given: list[str]) -> StartAt:
    from headrace.tools.offsets.imports import from_spark_json
    from headrace.tools.offsets.targets import parse
    from headrace.tools.records.start_positions import StartAt
    from headrace.types import TopicPartition

    offsets: dict[TopicPartition, int] = {}
    for text in given:
        topic, _, position = text.partition(":")
        partition, _, offset = position.partition(":")
        if not _is_time(text) and partition.isdigit() and offset.isdigit() and not topic.isdigit():
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        elif text.startswith("{"):
            try:
                offsets |= from_spark_json(json.loads(text), "--from")
            except json.JSONDecodeError as error:
                raise ConfigError(f"invalid JSON in --from: {error}", hint='{"clicks": {"0": 10}}') from error
        elif len(given) > 1:
            raise ConfigError(
                f"--from {text} cannot be combined with another --from",
                hint="only TOPIC:PARTITION:OFFSET may be repeated",
            )
    if offsets:
        return StartAt(offsets=offsets)
    (text,) = given
    if text.startswith("-") and text[1:].isdigit():
        return StartAt(last=int(text[1:]))
    hint = "earliest, latest, -10, 2026-11-01T12:00:00Z, 1h, or clicks:0:1200"
    try:
        target = parse(text, datetime.now(UTC))
    except ConfigError as error:
        raise ConfigError(f"--from: expected a start position, got {text!r}", hint=hint) from error
    if target.edge is None and target.time is None:
        raise ConfigError(f"--from: expected a start position, got {text!r}", hint=hint)
    # Kafka has no times before 1970: it uses negative numbers for other purposes.
    return StartAt(edge=target.edge, time=None if target.time is None else max(target.time, _EPOCH))


def _is_time(text: str) -> bool:
    """Whether it is a time: 2026-11-15T19:00:00 has two colons, too."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _query(
    connection: Connection, fmt: Format, names: list[str], where: str | None, spark: list[str] | None
) -> DecodedRecordQuery:
    from headrace.spark import session
    from headrace.tools.records.decoded_query import DecodedRecordQuery

    active = session.create(spark_options(spark), say_progress)
    return DecodedRecordQuery(active, connection.bootstrap, connection.options, fmt, names, where)
