"""The errors of Headrace, grouped by the reaction that they require.

HeadraceError
├── ConfigError            correct the configuration, then start again
│   └── UnsupportedGuarantee   choose another sink or another guarantee
├── RetriableError         wait and repeat; the runner does so
│   ├── TopicRecreated         a topic was replaced while it was read; the runner records the gap or stops
│   ├── BatchTimeout           a batch took longer than timeout=; its jobs were cancelled
│   └── BatchChanged           repeat at once: the batch is written differently now
├── OffsetConflict         another run moved the offsets; this one stops
├── DataLoss               unread records are gone; stops unless on_data_loss says otherwise
├── BadRecord              a record cannot be stored; divert it to the dead letters
├── TransformFailed        the transform raises on the rows; correct it
└── BatchRefused           a batch does not meet `expect`; inspect its rows before it is published

Exceptions of a driver never leave an adapter: it translates them with `raise … from`.
"""

from __future__ import annotations

from headrace.text import printable


class HeadraceError(Exception):
    """The base class. `hint` is the cure, a command or a setting; `exit_code` is the exit code of the process."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """The message without control characters: it may quote a record, and Python prints uncaught errors raw."""
        return "\n".join(printable(line) for line in Exception.__str__(self).split("\n"))


class ConfigError(HeadraceError):
    """Raised before anything is read or written, when the configuration cannot work."""

    exit_code = 2


class UnsupportedGuarantee(ConfigError):
    """Raised when a pipeline is built whose sink cannot give its guarantee."""


class RetriableError(HeadraceError):
    """Raised when the same call may succeed later: a broker, store or sink that does not answer."""


class TopicRecreated(RetriableError):
    """Raised when a topic was deleted and created again while a batch was being read from it.

    Nothing of the batch is stored. The runner refreshes the metadata: the ranges of the batch are a gap, or DataLoss.
    """


class BatchTimeout(RetriableError):
    """Raised when a batch takes longer than the pipeline's `timeout`, after its Spark jobs were cancelled."""


class BatchChanged(RetriableError):
    """Raised when the cause of a failure was found and removed from the batch, which is repeated without a wait."""


class OffsetConflict(HeadraceError):
    """Raised by a store's compare-and-set when the offsets are not where this run left them."""

    exit_code = 3


class DataLoss(HeadraceError):
    """Raised when records that were never processed can no longer be read."""

    exit_code = 4


class BadRecord(HeadraceError):
    """Raised when a record cannot be decoded or stored, and the pipeline has no dead letters."""


class TransformFailed(HeadraceError):
    """Raised when the transform fails, and neither a retry nor leaving out single records would help."""


class BatchRefused(HeadraceError):
    """Raised when the rows of a batch do not meet the conditions of `expect`; nothing of it is published."""
