"""The Delta sink: executors write Parquet files; the driver commits them together with the batch id."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.delta.file_stats import describe_file, encode_partition_columns
from headrace.connectors.delta.table import LOG, DeltaTablePath, partition_columns, spark_schema
from headrace.connectors.shared.batch_ledger import LastBatch, abandoned_folders
from headrace.connectors.shared.parquet_writer import write_files
from headrace.connectors.shared.schema_check import schema_mismatch
from headrace.core.sink import IdempotentSink, without_metadata
from headrace.errors import ConfigError, RetriableError
from headrace.spark.hadoop_fs import sync_with_parents
from headrace.spark.origin_columns import stored_schema
from headrace.support.crashpoints import reach
from headrace.support.durable import sync
from headrace.support.optional_imports import require
from headrace.support.pipeline_folder import resolve_path
from headrace.support.redaction import secrets_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.connectors.delta.file_stats import File
    from headrace.types import Batch

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LAST_CHECKPOINT = "_last_checkpoint"
# For an unusable folder the driver reports no error code, only the name of the Rust error.
_PERMANENT_ERRORS = ("NotADirectory", "PermissionDenied", "ReadOnlyFilesystem")
_DIGITS = 15
"""Digits of a fingerprint: as many as fit into the number in a transaction identifier."""


class Delta(IdempotentSink):
    """Appends to the Delta table at `path`: a local folder, or a URI that both deltalake and Spark can write to.

    Delta's transaction identifiers (`headrace:<pipeline>`) record the newest batch in the same commit as its rows.
    `app_id` replaces the name of the pipeline there: after a rename, set it to the earlier name.
    """

    driver = ("deltalake", "delta")

    needs_one_task_per_partition = False

    def __init__(
        self,
        path: str | Path,
        *,
        partition_by: str | Sequence[str] | None = None,
        create: bool = True,
        evolve: bool = False,
        app_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        text = str(path).removeprefix("file://")
        local = "://" not in text
        if local and "%" in text:
            raise ConfigError(f"Delta({text!r}): deltalake cannot write below a % in a path", hint="rename the folder")
        if app_id is not None and not _NAME.fullmatch(app_id):
            raise ConfigError(
                f"app_id: expected letters, digits, dots, dashes and underscores, got {app_id!r}",
                hint='app_id="clicks"',
            )
        self._path = DeltaTablePath(
            str(resolve_path(text).absolute()) if local else text.rstrip("/"),
            dict(storage_options or {}),
            (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ()),
            create,
            evolve,
        )
        self._app_id = app_id
        self._name = ""
        self._synced: set[str] = set()
        """Log files that were synced: entries and checkpoints are never rewritten."""

    @property
    def identity(self) -> str:
        return f"sinks.Delta({self._path.uri!r})"

    def secrets(self) -> frozenset[str]:
        return secrets_of(self._path.options)

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._path.partition_by

    @property
    def local_path(self) -> Path | None:
        return self._path.local

    def open(self, pipeline: str) -> Self:
        require("deltalake", extra="delta")
        self._name = self._app_id or pipeline
        self._synced = set()
        return super().open(pipeline)

    def prepare(self, schema: StructType) -> None:
        with self._translating_errors():
            self._path.ensure_table(stored_schema(schema))

    def check_target(self, schema: StructType) -> None:
        require("deltalake", extra="delta")
        with self._translating_errors():
            self._path.check(stored_schema(schema))

    def last_batch(self) -> int:
        with self._translating_errors():
            table = self._path.load()
            return self._last_batch(table).id if table else 0

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. look up the newest batch; 2. write files; 3. sync them; 4. commit them on the snapshot of step 1."""
        self.require_open(self._name or None)
        rows = without_metadata(rows)
        with self._translating_errors():
            table = self._path.ensure_table(rows.schema)
            newest = self._last_batch(table)
        if newest.holds(batch, self):
            with self._translating_errors():
                self._sync_log()  # the run that committed it may have died before its sync
            return
        # Not hidden, so that VACUUM finds the files of dead runs. Plain characters: the log has the path unescaped.
        folder = f"{self._folder}/{batch.id}-{batch.fingerprint}-{uuid.uuid4().hex[:12]}"
        by = partition_columns(table)
        encoded, names = encode_partition_columns(rows, by)
        row_count = write_files(encoded, self._path.in_spark(folder), names)
        reach("delta: files written")
        with self._translating_errors():
            files = self._describe_files(folder, spark_schema(table), by)
            if sum(file.records for file in files) != row_count:
                # Another run has committed the batch and removed these files, or another program removed some of them.
                if self._last_batch(self._path.load()).holds(batch, self):
                    self._sync_log()
                    return
                raise RetriableError(
                    f"{self!r}: files in {folder} were removed or changed after they were written",
                    hint="does another program remove files there?",
                )
            self._refuse_nulls(rows.schema, spark_schema(table), files)
            if self._path.local:  # an object store has already stored them durably
                sync_with_parents(self._path.local / folder)
            reach("delta: files durable")
            committed = self._commit(table, newest, batch, files)
            reach("delta: committed")
            self._sync_log()
            if committed:
                self._delete_abandoned_files(newest.id, batch.id, keep=folder)
        reach("delta: cleared")

    @property
    def _folder(self) -> str:
        return f"headrace/{self._name}"

    @property
    def _transaction(self) -> str:
        return f"headrace:{self._name}"

    def _last_batch(self, table: Any) -> LastBatch:
        batch_id = table.transaction_version(self._transaction)
        ranges = table.transaction_version(f"{self._transaction}:ranges")
        return LastBatch(batch_id or 0, "" if ranges is None else f"{ranges:0{_DIGITS}x}")

    def _commit(self, table: Any, newest: LastBatch, batch: Batch, files: Sequence[File]) -> bool:
        """Commit on the snapshot in which the newest batch was looked up; False if the batch was already committed.

        After commits of other writers, delta-rs tries again, but not after a commit with the same transaction
        identifier. So the newest batch in the snapshot is still the newest in the commit. delta-rs does not compare
        versions; `LastBatch` does.
        """
        transaction = require("deltalake.transaction", extra="delta")
        written = int(time.time() * 1000)
        added = [
            transaction.AddAction(file.path, file.size, dict(file.partition), written, True, file.stats)
            for file in files
            if file.records
        ]
        # Without an update time identifiers never expire. The fingerprint of the ranges also is an identifier: a log
        # cleanup deletes commit metadata, and a repeated batch must be recognised as long as the table exists.
        identifiers = [
            transaction.Transaction(self._transaction, batch.id),
            transaction.Transaction(f"{self._transaction}:ranges", int(batch.fingerprint[:_DIGITS], 16)),
        ]
        metadata = {"headrace": json.dumps({"pipeline": self._name, "batch": json.loads(batch.to_json())})}
        properties = transaction.CommitProperties(custom_metadata=metadata, app_transactions=identifiers)
        try:
            table.create_write_transaction(
                added, "append", table.schema(), list(partition_columns(table)), commit_properties=properties
            )
        except require("deltalake.exceptions", extra="delta").CommitFailedError as error:
            # The commit of another run, or that of this run if its reply was lost. They look the same: remove no files.
            now = self._last_batch(self._path.load())
            if now == newest:
                raise RetriableError(f"{self!r}: {error}", hint="did another writer change the table?") from error
            if now.holds(batch, self):
                return False
            raise now.conflict(batch, self) from error
        return True

    def _describe_files(self, folder: str, table: StructType, by: Sequence[str]) -> list[File]:
        from pyarrow import parquet
        from pyarrow.fs import FileSelector

        filesystem = self._path.filesystem()
        entries = filesystem.get_file_info(FileSelector(folder, recursive=True))
        return [
            describe_file(info.path, info.size, parquet.read_metadata(info.path, filesystem=filesystem), table, by)
            for info in sorted(entries, key=lambda info: str(info.path))
            if info.is_file and info.path.endswith(".parquet")
        ]

    def _refuse_nulls(self, rows: StructType, table: StructType, files: Sequence[File]) -> None:
        for field in table.fields:
            if not field.nullable and any(file.may_be_null(field.name) for file in files if file.records):
                raise schema_mismatch(rows, table, self, f"{field.name} is NOT NULL, and a row has null")

    def _delete_abandoned_files(self, before: int, after: int, *, keep: str) -> None:
        """Delete the files of dead runs."""
        from pyarrow.fs import FileSelector

        filesystem = self._path.filesystem()
        entries = filesystem.get_file_info(FileSelector(self._folder, recursive=False))
        names = (info.path.rpartition("/")[2] for info in entries)
        for name in abandoned_folders(names, before, after, keep.rpartition("/")[2]):
            path = f"{self._folder}/{name}"
            with suppress(OSError):  # left for VACUUM
                filesystem.delete_dir(path)
                if self._path.local:  # only files were deleted: an object store has no folders
                    shutil.rmtree(self._path.local / path, ignore_errors=True)

    def _sync_log(self) -> None:
        """Sync the entries and checkpoints of all writers: readers need every one up to the newest."""
        if self._path.local is None:
            return
        log = self._path.local / LOG
        files = {entry.name for entry in os.scandir(log) if entry.is_file()}
        for name in sorted(files - self._synced):
            with suppress(FileNotFoundError):  # deleted by a log cleanup a moment ago
                sync(log / name)
        self._synced = files - {_LAST_CHECKPOINT}
        sync(log)
        sync(log.parent)

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        exceptions = require("deltalake.exceptions", extra="delta")
        try:
            yield
        except (exceptions.DeltaProtocolError, exceptions.SchemaMismatchError) as error:
            raise ConfigError(f"{self!r}: {error}", hint="write to another table") from error
        except (exceptions.DeltaError, OSError) as error:
            permanent = (PermissionError, NotADirectoryError, FileExistsError)
            if (
                isinstance(error, permanent)
                or getattr(error, "errno", None) == errno.EROFS
                or any(word in str(error) for word in _PERMANENT_ERRORS)
            ):
                raise ConfigError(f"{self!r} cannot be written: {error}", hint="choose another path") from error
            raise RetriableError(f"{self!r}: {error}", hint="is the storage reachable, and not full?") from error
