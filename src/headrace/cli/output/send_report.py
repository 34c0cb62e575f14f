"""The output of `produce` and `replay`: offsets of records, failed records, and the totals."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Self

import typer

from headrace.cli.output.records import close_output, write
from headrace.cli.output.terminal import say
from headrace.errors import ConfigError
from headrace.support.paths import private_file
from headrace.text import printable
from headrace.tools.records.record import instant, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.tools.records.producer import TopicProducer
    from headrace.tools.records.record import Record

_SHOWN = 5


class FailedRecordLog:
    """Called with each failed record. Shows the first ones, and writes all of them to the file, if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: IO[str] | None = None
        self._count = 0

    def __enter__(self) -> Self:
        if self.path is not None and not self.path.absolute().parent.is_dir():
            raise ConfigError(f"--errors {self.path}: the directory does not exist")
        if self.path is not None and self.path.is_dir():
            raise ConfigError(f"--errors {self.path} is a directory", hint=f"--errors {self.path / 'failed.jsonl'}")
        if self.path is not None and not os.access(self.path if self.path.exists() else self.path.parent, os.W_OK):
            raise ConfigError(f"--errors {self.path} is not writable")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # each record was flushed, or its loss was reported
                self._file.close()

    def __call__(self, record: Record, reason: str) -> None:
        self._count += 1
        if self._count <= _SHOWN:
            say(f"failed: {reason}", err=True)
        if self.path is None:
            return
        try:
            private_file(self.path)  # it contains user data
            self._file = self._file or self.path.open("a", encoding="utf-8")
            self._file.write(to_json(record, error=reason) + "\n")
            self._file.flush()
        except OSError as error:
            path, self.path = self.path, None  # report it once
            message = f"--errors {path} cannot be written: {error.strerror or error}"
            raise ConfigError(message, hint="the failed records were not saved; send them again") from error


class OffsetPrinter:
    """Called with each acknowledged record: prints its partition and offset until the reader closes the pipe."""

    def __init__(self) -> None:
        self._is_open = sys.stdout is not None

    def __call__(self, record: Record) -> None:
        if not self._is_open:
            return
        try:
            write(f"{printable(record.place)}\n".encode())
        except BrokenPipeError:
            self._is_open = False
            close_output()


def warn_about_retention(sender: TopicProducer, first: int) -> None:
    """Warn that retention deletes records by their timestamp, not by their arrival."""
    retention = int(sender.topic.setting("retention.ms") or -1)
    deletes = "delete" in (sender.topic.setting("cleanup.policy") or "")
    if deletes and 0 <= retention < time.time() * 1000 - first:
        say(
            f"warning: records of {instant(first)} are older than retention.ms={retention} of {sender.topic.name};"
            " the broker deletes them soon",
            err=True,
        )


@contextmanager
def report_totals(sender: TopicProducer, failures: FailedRecordLog, stop: Callable[[], bool]) -> Iterator[None]:
    """After the block, also after an error, send the records that are still queued and print the totals."""
    try:
        yield
    finally:
        sender.finish()
        totals = f"{sender.acknowledged:,} " + (
            "acknowledged" if sender.wants_acknowledgement else "sent without acknowledgement"
        )
        log = f" (in {failures.path})" if sender.failures and failures.path else ""
        stopped = "stopped: " if stop() else ""
        say(f"{stopped}{totals}, {sender.failures:,} failed{log}, {sender.rate:,.0f}/s", err=True)
    if sender.failures:
        raise typer.Exit(1)
