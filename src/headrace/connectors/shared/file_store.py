"""Files in a directory, HDFS or an object store. The only requirement: a file appears completely or not at all."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.core.error_markers import is_class_missing
from headrace.errors import ConfigError, RetriableError
from headrace.support.durable import make_directory, sync

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

# In these file systems closing a new file makes it visible as a whole; a rename would copy it.
_PUT_IS_ATOMIC = frozenset({"s3", "s3a", "s3n", "gs", "oss", "obs", "cosn"})


class FileStore(Protocol):
    """Names are relative to the root and use slashes."""

    def uri(self, name: str = "") -> str:
        """The path of a file for Spark and other readers."""

    def list_files(self, under: str) -> list[str]:
        """All files below the directory `under`; none if it does not exist."""

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it does not exist."""

    def put(self, name: str, data: bytes) -> bool:
        """Create a file atomically and durably; False, without changes, if it exists."""

    def remove(self, names: Iterable[str]) -> None: ...

    def fsync(self, names: Iterable[str]) -> None:
        """Sync files that Spark wrote: on return they survive a power failure."""


class Local:
    """A local directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def uri(self, name: str = "") -> str:
        return str(self.root / name)

    def list_files(self, under: str) -> list[str]:
        walk = os.walk(self.root / under)
        return [str(Path(parent, name).relative_to(self.root)) for parent, _, names in walk for name in names]

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> bool:
        target = self.root / name
        make_directory(target.parent)
        temporary = target.with_name(f".{uuid.uuid4().hex}")
        try:
            temporary.write_bytes(data)
            sync(temporary)
            os.link(temporary, target)  # a rename would replace an existing file
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
            sync(target.parent)  # also if the file exists: its writer may have died before the sync
        return True

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.root / name
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop writes one next to each file
            for parent in path.relative_to(self.root).parents[:-2]:
                try:
                    (self.root / parent).rmdir()
                except OSError:
                    break  # not empty

    def fsync(self, names: Iterable[str]) -> None:
        files = [self.root / name for name in names]
        for file in files:
            sync(file)
        for directory in {parent for file in files for parent in file.parents if parent.is_relative_to(self.root)}:
            sync(directory)


class Hadoop:
    """Any file system that Spark can write to, with Spark's credentials and settings."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        java_context: Any = spark.sparkContext._jsc
        self._root = root.rstrip("/")
        self._path = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.commons.io.IOUtils
        self._atomic_put = self._root.partition(":")[0].lower() in _PUT_IS_ATOMIC
        with translating_errors(root):
            self._system = self._path(self._root).getFileSystem(java_context.hadoopConfiguration())
            self._prefix = str(self._system.makeQualified(self._path(self._root)).toString()) + "/"

    def uri(self, name: str = "") -> str:
        return f"{self._root}/{name}" if name else self._root

    def list_files(self, under: str) -> list[str]:
        names = []
        with suppress(FileNotFoundError), translating_errors(self.uri(under)):
            entries = self._system.listFiles(self._path(self.uri(under)), True)
            while entries.hasNext():
                names.append(str(entries.next().getPath().toString()).removeprefix(self._prefix))
        return names

    def exists(self, name: str) -> bool:
        with translating_errors(self.uri(name)):
            return bool(self._system.exists(self._path(self.uri(name))))

    def read(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError), translating_errors(self.uri(name)):
            stream = self._system.open(self._path(self.uri(name)))
            try:
                return bytes(self._io.toByteArray(stream))
            finally:
                stream.close()
        return None

    def put(self, name: str, data: bytes) -> bool:
        target = self._path(self.uri(name))
        with suppress(FileExistsError), translating_errors(self.uri(name)):
            if self._system.exists(target):
                return False
            if self._atomic_put:
                self._write(target, data)
                return True
            temporary = self._path(target.getParent(), f".{uuid.uuid4().hex}")
            self._write(temporary, data)
            if self._system.rename(temporary, target):  # on HDFS and ABFS a rename replaces nothing
                return True
            self._system.delete(temporary, False)
            if not self._system.exists(target):
                raise RetriableError(f"{self.uri(name)} could not be written")
        return False

    def _write(self, target: Any, data: bytes) -> None:
        """Create a file. FileExistsError if it exists and the file system has an atomic create."""
        builder = self._system.createFile(target).recursive().overwrite(False)
        stream = builder.opt("fs.option.create.conditional.overwrite", True).build()  # S3, from Hadoop 3.4.2 on
        stream.write(bytearray(data))
        # Close only after all bytes were accepted, because closing makes an object visible.
        stream.close()

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._path(self.uri(name))
            with translating_errors(self.uri(name)):
                self._system.delete(path, False)
            if not self._atomic_put:  # an object store has no directories
                with suppress(Exception):  # not empty
                    self._system.delete(path.getParent(), False)

    def fsync(self, names: Iterable[str]) -> None:
        """Does nothing: such a file system stores a file durably before it accepts it."""


@contextmanager
def translating_errors(path: str) -> Iterator[None]:
    """Translate Java exceptions within the block to Headrace's errors, or to FileNotFoundError or FileExistsError."""
    try:
        yield
    except Exception as error:
        java: Any = getattr(error, "java_exception", None)
        if java is None:
            raise
        kind, message = str(java.getClass().getSimpleName()), str(java.getMessage()).partition("\n")[0]
        if kind == "FileNotFoundException":
            raise FileNotFoundError(message) from error
        if kind in ("FileAlreadyExistsException", "RemoteFileChangedException"):
            raise FileExistsError(message) from error
        if kind == "UnsupportedFileSystemException" or is_class_missing(message):
            raise ConfigError(
                f"{path}: Spark has no file system for it: {message}",
                hint="--spark spark.jars.packages=org.apache.hadoop:hadoop-aws:… brings s3a://",
            ) from error
        if kind in ("AccessControlException", "AccessDeniedException"):
            raise ConfigError(f"{path}: {message}", hint="look at the credentials in the session's options") from error
        raise RetriableError(f"{path}: {kind}: {message}") from error


def file_store_at(spark: SparkSession, root: str) -> FileStore:
    """The file store for a path in Spark's notation; `file:/…` is local."""
    if root.startswith("file:"):
        return Local(Path("/" + root.removeprefix("file:").lstrip("/")))
    return Hadoop(spark, root)
