"""Records where a run of a pipeline has its files, so that a run with other paths reports the difference."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.support.paths import private_directory, state_directory, write_private
from headrace.support.pipeline_folder import path_in_working_directory

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.runtime.pipeline import Pipeline


def paths_changed(pipeline: Pipeline) -> list[str]:
    """A note for each file or folder that does not exist yet, although the last run used one at another path.

    Versions that resolved relative paths against the current directory left no record; their paths are checked as well.
    """
    try:
        last_paths = json.loads(_record_file(pipeline).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last_paths = {}
    notes = []
    for name, path in _paths(pipeline).items():
        if path.exists():
            continue
        if name in last_paths:
            if last_paths[name] != str(path):
                notes.append(f"last run used {last_paths[name]}; this one is {path}, which does not exist yet")
        elif (previous := path_in_working_directory(path)) is not None and previous.exists():
            notes.append(
                f"this run uses {path}, which does not exist yet; there is {previous}: relative paths belong to the"
                " folder of the pipeline's file, and no longer to the current directory"
            )
    return notes


def remember(pipeline: Pipeline) -> None:
    """Record the paths for the next run. A failure to write them is ignored."""
    paths = {name: str(path) for name, path in _paths(pipeline).items()}
    record = _record_file(pipeline)
    if paths or record.exists():
        with suppress(OSError):
            private_directory(record.parent)
            write_private(record, json.dumps(paths))


def _paths(pipeline: Pipeline) -> dict[str, Path]:
    paths = {f"sink {number}": sink.local_path for number, sink in enumerate(pipeline.sink.members, start=1)}
    # Offsets in the state directory need no entry: if that directory moves, this record is lost with it.
    paths["offsets"] = pipeline.offsets.local_path if pipeline.offsets is not None else None
    return {name: path for name, path in paths.items() if path is not None}


def _record_file(pipeline: Pipeline) -> Path:
    return state_directory() / "locations" / f"{pipeline.name}.json"
