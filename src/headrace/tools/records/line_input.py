"""Reads lines to produce from files or standard input, and converts each to a record."""

from __future__ import annotations

import gzip
import os
import sys
import threading
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from typing import IO, TYPE_CHECKING

from headrace.errors import BadRecord, ConfigError
from headrace.support.polling import readable
from headrace.tools.records.record import ENCODERS, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headrace.kafka.headers import Headers

_CHUNK = 1 << 16
_MAX_CHUNKS = 64
_POLL_SECONDS = 0.1
_MAX_LINE_BYTES = 256 << 20
"""Maximum size of a line. It is kept in memory, and brokers accept one megabyte by default."""


@contextmanager
def open_input(path: Path) -> Iterator[IO[bytes]]:
    """Open a file; it is decompressed if its name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def from_files(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        with open_input(path) as file:
            while line := file.readline(_MAX_LINE_BYTES + 1):
                yield _check_length(line, str(path))


def from_stdin(stop: Callable[[], bool]) -> Iterator[bytes | None]:
    """The lines of standard input; None while none arrives, so that the caller can poll its producer, and stop."""
    if sys.stdin is None:
        raise ConfigError("standard input is closed", hint="--file FILE, or < FILE")
    chunks: Queue[bytes | Exception] = Queue(_MAX_CHUNKS)
    descriptor = sys.stdin.fileno()

    def read() -> None:
        # Not through sys.stdin: if its lock is held at exit, Python aborts.
        chunk: bytes | None = None
        try:
            while chunk != b"":
                try:
                    chunk = os.read(descriptor, _CHUNK)
                except BlockingIOError:  # another process with the same input made it non-blocking
                    readable(descriptor)
                else:
                    chunks.put(chunk)
        except Exception as error:
            chunks.put(error)

    threading.Thread(target=read, name="headrace-stdin", daemon=True).start()
    parts: list[bytes] = []  # the parts of an incomplete line
    size = 0
    while not stop():
        try:
            chunk = chunks.get(timeout=_POLL_SECONDS)
        except Empty:
            yield None
            continue
        if isinstance(chunk, Exception):
            raise ConfigError(f"standard input cannot be read: {getattr(chunk, 'strerror', None) or chunk}") from chunk
        if not chunk:
            if parts and (rest := b"".join(parts)):
                yield rest
            return
        rest, *lines = chunk.split(b"\n")
        parts.append(rest)
        size += len(rest)
        if size > _MAX_LINE_BYTES:
            raise _too_long("standard input")
        if lines:
            yield b"".join(parts)
            yield from lines[:-1]
            parts, size = [lines[-1]], len(lines[-1])


def _check_length(line: bytes, where: str) -> bytes:
    if len(line) > _MAX_LINE_BYTES:
        raise _too_long(where)
    return line


def _too_long(where: str) -> ConfigError:
    return ConfigError(
        f"a line of {where} is longer than {_MAX_LINE_BYTES >> 20} MiB: neither it nor the lines after it are sent",
        hint="a record is a line: is this a text file?",
    )


@dataclass(frozen=True, slots=True)
class Lines:
    """Converts a line to a record: the key stands before `separator`, and `null` stands for an absent key or value."""

    topic: str
    separator: bytes | None = None
    null: bytes | None = None
    key_format: str = "text"
    value_format: str = "text"
    headers: Headers = ()
    partition: int | None = None
    encode: Callable[[bytes], bytes] | None = None
    """Encodes the value instead of `value_format`; ValueError if it cannot."""

    def record(self, line: bytes) -> Record:
        """The record of a line; BadRecord if the line cannot be converted."""
        line = line.rstrip(b"\n").removesuffix(b"\r")
        key, value = None, line
        if self.separator is not None:
            key, found, value = line.partition(self.separator)
            if not found:
                raise BadRecord(f"no key: the line has no {self.separator.decode()!r}")
        encoded_key = self._part(key, ENCODERS[self.key_format], f"the key is not {self.key_format}")
        encode, wrong = ENCODERS[self.value_format], f"the value is not {self.value_format}"
        if self.encode is not None:
            encode, wrong = self.encode, "the value does not fit the Avro schema"
        return self._new_record(encoded_key, self._part(value, encode, wrong))

    def raw_record(self, line: bytes) -> Record:
        return self._new_record(None, line.rstrip(b"\n"))

    def _new_record(self, key: bytes | None, value: bytes | None) -> Record:
        return Record(self.topic, self.partition, None, None, None, key, value, self.headers)

    def _part(self, raw: bytes | None, encode: Callable[[bytes], bytes], wrong: str) -> bytes | None:
        if raw is None or raw == self.null:
            return None
        try:
            return encode(raw)
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"{wrong}: {error}") from error
