"""Numbers of batches for sinks that recognise the newest batch by its number.

Spark counts the batches of each checkpoint from 0, but numbers in a sink only grow. A file in the checkpoint has the
number of its batch 0; it is written before the first batch, so that a repeated batch has the same number.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.core import format_version
from headrace.errors import OffsetConflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.connectors.shared.file_store import FileStore

FORMAT = 1


def number_of_batch_zero(checkpoint: FileStore, name: str, batch_id: int, newest: Callable[[], int]) -> int:
    """The number of batch 0 of this checkpoint. `newest` returns the number of the newest batch that the sink has."""
    file = f"headrace/{name}.json"
    text = checkpoint.read(file)
    if text is not None:
        raw = json.loads(text)
        format_version.read_version(raw, FORMAT, f"the file {file} of the checkpoint")
        return int(raw["batch_zero"])
    zero = newest() + 1 - batch_id
    if not checkpoint.put(file, json.dumps({format_version.KEY: FORMAT, "batch_zero": zero}).encode()):
        raise OffsetConflict(f"{name}: another process runs this query", hint="stop one of the two")
    return zero
