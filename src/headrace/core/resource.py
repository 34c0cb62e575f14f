"""The lifecycle of stores and sinks: they are opened for one pipeline, and closed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_Opened = TypeVar("_Opened")


class Resource:
    """A store or sink. The user creates it as a description; `open` connects.

    1. `open(pipeline)` is called once per run, before any other call.
    2. `close()` is called once at the end of the run, also after a failure, also when `open` failed.

    `with store.open("clicks") as store: ...` does both.
    """

    driver: ClassVar[tuple[str, str] | None] = None
    """The Python module that it needs, and the extra of Headrace that installs it."""

    @property
    def identity(self) -> str:
        """The system, the address, and the table or path, in one line without secrets. Empty: it has no identity.

        State is stored under it (see `sinks.Fanout`), so the same settings give the same text in every version. It is
        also the `repr` of the resource, unless `__repr__` is overridden.
        """
        return ""

    def __repr__(self) -> str:
        return self.identity or super().__repr__()

    @property
    def local_path(self) -> Path | None:
        """The file or directory of this machine that holds the data, if any."""
        return None

    def require_open(self, opened: _Opened | None) -> _Opened:
        """The connection that `open` created; ConfigError if it was not called. All methods get the connection here."""
        if opened is None:
            raise ConfigError(f"{self!r} is used before open()")
        return opened

    def open(self, pipeline: str) -> Self:
        """Connect for `pipeline`. Raises ConfigError or RetriableError."""
        return self

    def close(self) -> None:
        """Close all connections. Can be called twice; never raises for a connection that is already lost."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
