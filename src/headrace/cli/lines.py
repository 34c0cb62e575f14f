"""Lines to produce: where they come from, and what each says."""

from __future__ import annotations

import gzip
import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from typing import IO, TYPE_CHECKING

from headrace.errors import BadRecord, ConfigError
from headrace.kafka.records import ENCODERS, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headrace.kafka.records import Headers

_CHUNK = 1 << 16
_CHUNKS = 64
_PATIENCE = 0.1


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file, unpacked if its name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def from_files(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        with opened(path) as file:
            yield from file


def from_stdin(stop: Callable[[], bool]) -> Iterator[bytes | None]:
    """None while nothing comes, so that whoever sends can hear of what was sent, and stop."""
    chunks: Queue[bytes] = Queue(_CHUNKS)
    descriptor = sys.stdin.fileno()

    def read() -> None:
        # Not through sys.stdin: its lock, held at the end of the process, would be fatal.
        while chunk := os.read(descriptor, _CHUNK):
            chunks.put(chunk)
        chunks.put(b"")

    threading.Thread(target=read, name="headrace-stdin", daemon=True).start()
    rest = b""
    while not stop():
        try:
            chunk = chunks.get(timeout=_PATIENCE)
        except Empty:
            yield None
            continue
        if not chunk:
            if rest:
                yield rest
            return
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole


@dataclass(frozen=True, slots=True)
class Lines:
    """How a line becomes a record: its key before `separator`, `null` for nothing, the rest by its format."""

    topic: str
    separator: bytes | None = None
    null: bytes | None = None
    key_format: str = "text"
    value_format: str = "text"
    headers: Headers = ()
    partition: int | None = None

    def record(self, line: bytes) -> Record:
        """BadRecord if the line does not say what it should."""
        line = line.rstrip(b"\n").removesuffix(b"\r")
        key, value = None, line
        if self.separator is not None:
            key, found, value = line.partition(self.separator)
            if not found:
                raise BadRecord(f"no key: the line has no {self.separator.decode()!r}")
        return self._made(self._part(key, self.key_format, "key"), self._part(value, self.value_format, "value"))

    def as_it_is(self, line: bytes) -> Record:
        return self._made(None, line.rstrip(b"\n"))

    def _made(self, key: bytes | None, value: bytes | None) -> Record:
        return Record(self.topic, self.partition, None, None, None, key, value, self.headers)

    def _part(self, raw: bytes | None, form: str, what: str) -> bytes | None:
        if raw is None or raw == self.null:
            return None
        try:
            return ENCODERS[form](raw)
        except ValueError as error:
            raise BadRecord(f"the {what} is not {form}: {error}") from error
