"""Every error of Headrace, named by the reaction it asks for.

HeadraceError
├── ConfigError            fix what was written, then start again
│   └── UnsupportedGuarantee   choose another sink or another guarantee
├── RetriableError         wait and repeat; the runner does
│   ├── TopicRecreated         a topic was replaced while it was read; the runner records the gap or stops
│   ├── BatchTimeout           a batch took longer than timeout=; its jobs were cancelled
│   └── BatchChanged           repeat at once: the batch is written differently now
├── OffsetConflict         another run moved the offsets; this one stops
├── DataLoss               the wanted offsets are gone; stops unless on_data_loss says otherwise
├── BadRecord              a record cannot be stored; quarantine it
├── TransformFailed        the transform raises on the rows; correct it
└── BatchRefused           a batch is not as expected; inspect its rows before it is published

A driver's own exceptions never leave an adapter: they are translated at its border with `from`.
"""

from __future__ import annotations

from headrace.text import printable


class HeadraceError(Exception):
    """The root. `hint` says what to type: a command or a setting; `exit_code` is the exit code of the process."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Without control characters: it may quote a record, and Python prints uncaught errors to the terminal."""
        return "\n".join(printable(line) for line in Exception.__str__(self).split("\n"))


class ConfigError(HeadraceError):
    """Raised before anything is read or written, when the configuration cannot work."""

    exit_code = 2


class UnsupportedGuarantee(ConfigError):
    """Raised when a pipeline is built whose sink cannot give the guarantee it names."""


class RetriableError(HeadraceError):
    """Raised when the same call may succeed later: a broker, store or sink that does not answer."""


class TopicRecreated(RetriableError):
    """Raised when a topic was deleted and created again while a batch of it was being read.

    Nothing of the batch is stored. The runner refreshes the metadata: the ranges of the batch are a gap, or DataLoss.
    """


class BatchTimeout(RetriableError):
    """Raised when a batch takes longer than the pipeline's `timeout`, after its Spark jobs were cancelled."""


class BatchChanged(RetriableError):
    """Raised when the cause of a failure was found and taken out of the batch, which is repeated without a wait."""


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
    """Raised when the rows of a batch do not meet what the pipeline expects of them; nothing of it is published."""
