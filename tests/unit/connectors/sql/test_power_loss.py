"""Offsets in SQLite and DuckDB after a power cut: strace records every write and sync, replayed up to any point."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace import sinks, stores
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMITS = 3
# It ends without closing anything: a file that is closed is tidied up, and nobody does that when the power goes.
CHILD = f"""
import os, sys
from headrace import stores
from headrace.types import Batch, Range, TopicPartition

store = getattr(stores, sys.argv[1])(sys.argv[2]).open("clicks")
for number in range(1, {COMMITS} + 1):
    batch = Batch(number, (Range(TopicPartition("clicks", 0), number - 1, number),))
    store.begin(batch)
    store.commit(batch)
    os.write(1, b"committed %d" % number)
os._exit(0)
"""
CALLS = "openat,pwrite64,write,ftruncate,fsync,fdatasync,unlink"
LINE = re.compile(r'^\d+ +(\w+)\((?:AT_FDCWD<[^>]*>, )?(?:(\d+)<([^>]*)>|"([^"]*)")(?:, (.*))?\) = (\d+)')


@dataclass
class File:
    live: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    named: bool = False
    """Whether its directory was synced since it was created."""


def unhexed(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def traced(kind: str, path: Path) -> str:
    log = path.parent / "strace.log"
    command = ["strace", "-f", "-y", "-xx", "-s", "100000000", "-e", f"trace={CALLS}", "-o", str(log)]
    done = subprocess.run([*command, sys.executable, "-c", CHILD, kind, str(path)], capture_output=True, check=False)
    if done.returncode and b"ptrace" in done.stderr:
        pytest.skip("strace may not trace here (ptrace is forbidden)")
    assert done.returncode == 0, done.stderr
    return log.read_text()


def calls(log: str) -> Iterator[str]:
    """The lines of a log of several threads: a call that another one interrupted is in two of them."""
    begun: dict[str, str] = {}
    for line in log.splitlines():
        thread, _, rest = line.partition(" ")
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>").rstrip()
        elif rest.lstrip().startswith("<... "):
            yield begun.pop(thread) + rest.partition("resumed>")[2]
        else:
            yield line


def disks(log: str, path: Path) -> Iterator[tuple[int, dict[str, bytes]]]:
    """After each call, how many commits had returned, and every set of files that a power cut may leave."""
    files: dict[str, File] = {}
    at: dict[str, int] = {}
    returned = 0
    for line in calls(log):
        if (found := LINE.match(line)) is None:
            continue
        call, handle, shown, name, rest, answer = found.groups()
        where = unhexed(shown or name or "").decode()
        if call == "write" and handle == "1":
            returned += 1
        elif where == str(path.parent) and call in ("fsync", "fdatasync"):
            for file in files.values():
                file.named = True
        elif not where.startswith(str(path)) or where.endswith("-shm"):  # an index of the log, built again when opened
            continue
        elif call == "openat":
            if "O_CREAT" in (rest or ""):
                files.setdefault(where, File())
            at[answer] = 0
        elif call == "unlink":
            files.pop(where, None)
        else:
            _change(files[where], call, rest or "", handle, at)
        for kept in product((False, True), repeat=len(files)):
            made = zip(files.items(), kept, strict=True)
            yield (
                returned,
                {
                    Path(one).name: bytes(file.live) if live else file.synced
                    for (one, file), live in made
                    if live or file.named
                },
            )


def _change(file: File, call: str, rest: str, handle: str, at: dict[str, int]) -> None:
    if call in ("fsync", "fdatasync"):
        file.synced = bytes(file.live)
    elif call == "ftruncate":
        size = int(rest)
        file.live = file.live[:size].ljust(size, b"\0")
    else:
        text, *place = rest.rsplit('", ', 1)
        data = unhexed(text.lstrip('"'))
        start = int(place[0].split(", ")[1]) if call == "pwrite64" else at[handle]
        at[handle] = start + len(data)
        file.live = file.live.ljust(start, b"\0")
        file.live[start : start + len(data)] = data


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("kind", ["SQLite", "DuckDB"])
def test_offsets_that_were_committed_outlive_a_power_cut(tmp_path, kind):
    (tmp_path / "there").mkdir()
    path = tmp_path / "there" / "offsets.db"
    log = traced(kind, path)
    seen = set()
    for number, (returned, files) in enumerate(disks(log, path)):
        key = (returned, tuple(sorted(files.items())))
        if key in seen:
            continue
        seen.add(key)
        place = tmp_path / f"disk-{number}"
        place.mkdir()
        for name, data in files.items():
            (place / name).write_bytes(data)
        try:
            with getattr(stores, kind)(place / path.name).open("clicks") as store:
                offsets = list(store.load().offsets.values())
        except ConfigError as error:
            # DuckDB does not open a file that it had not finished creating. It says so, and nothing is lost with it.
            assert kind == "DuckDB" and not returned and "move the file away" in error.hint
            continue
        assert offsets in ([[returned], [returned + 1]] if returned else [[], [1]]), (number, sorted(files))
        shutil.rmtree(place)
    assert max(returned for returned, _ in seen) == COMMITS
    assert len(seen) > 2 * COMMITS


def pragmas(connection):
    return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]


def test_sqlite_syncs_every_commit(tmp_path):
    """In the mode WAL, 2 (FULL) syncs the log with each commit; 1 (NORMAL) only at checkpoints."""
    for store in (stores.SQLite(tmp_path / "a.db"), sinks.SQLite(tmp_path / "b.db", "rows").offsets):
        with store.open("clicks") as opened:
            assert pragmas(opened._connection) == ["wal", 2]
    marks = stores.SQLite(tmp_path / "a.db").marks("clicks", 60.0)
    marks.prepare()
    with closing(marks.connect()) as marker:
        assert pragmas(marker.connection) == ["wal", 2]
