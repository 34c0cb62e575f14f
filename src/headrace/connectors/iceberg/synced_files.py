"""Syncs files of a local Iceberg table before the catalog refers to them: without them the table is unreadable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlparse

from pyiceberg.io import OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from headrace.support.durable import make_directory, sync

if TYPE_CHECKING:
    from pyiceberg.io import InputFile


class SyncedFileIO(PyArrowFileIO):
    """The FileIO that pyiceberg loads by name: closing a file syncs the file and its directory entry."""

    def new_output(self, location: str) -> Any:
        return _Output(super().new_output(location))


class _Output(OutputFile):
    def __init__(self, file: OutputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def to_input_file(self) -> InputFile:
        return self._file.to_input_file()

    def create(self, overwrite: bool = False) -> Any:
        path = Path(urlparse(self.location).path)
        make_directory(path.parent)
        return _Stream(self._file.create(overwrite), path)


class _Stream:
    def __init__(self, stream: Any, path: Path) -> None:
        self._stream = stream
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes) -> int:
        return int(self._stream.write(data))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        self._stream.close()
        sync(self._path)
        sync(self._path.parent)
