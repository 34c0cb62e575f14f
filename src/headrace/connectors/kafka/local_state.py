"""Local files about a consumer group: which partitions had offsets, and the audit log."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from headrace.core import format_version
from headrace.core.state import AuditEntry
from headrace.errors import ConfigError
from headrace.support.paths import private_directory, private_file, state_directory
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.types import Progress


FORMAT = 1
"""Format of the file; see `format_version`."""


class KnownTopic(NamedTuple):
    """The last known id of a topic, and the partitions that had offsets."""

    id: str | None
    partitions: frozenset[int]


class LocalGroupState:
    """The file names contain group and cluster, because another cluster may have a group of the same name."""

    def __init__(self, group: str, cluster_id: str) -> None:
        name = f"{quote(group, safe='')}@{cluster_id}"
        self.marker = state_directory() / "kafka" / f"{name}.json"
        self.log = state_directory() / "history" / f"{name}.jsonl"
        self._known = self._read()

    @property
    def topics(self) -> dict[str, KnownTopic]:
        return self._known

    def missing(self, committed: set[TopicPartition]) -> dict[str, frozenset[int]]:
        """Partitions that had offsets and are not in `committed`, by topic."""
        if self._missing(committed):
            self._known = self._read()  # the user may have deleted the file to start over
        return self._missing(committed)

    def _missing(self, committed: set[TopicPartition]) -> dict[str, frozenset[int]]:
        missing = {
            topic: frozenset(p for p in known.partitions if TopicPartition(topic, p) not in committed)
            for topic, known in self._known.items()
        }
        return {topic: partitions for topic, partitions in missing.items() if partitions}

    def remember(self, progress: Progress) -> None:
        """Store new topics and partitions."""
        by_topic: dict[str, set[int]] = {}
        for at in progress.offsets:
            by_topic.setdefault(at.topic, set()).add(at.partition)
        now = {topic: KnownTopic(progress.topic_ids.get(topic), frozenset(found)) for topic, found in by_topic.items()}
        if all(self._covers(topic, known) for topic, known in now.items()):
            return
        self._known = self._read()
        for topic, known in now.items():
            before = self._known.get(topic)
            earlier = before.partitions if before and before.id == known.id else frozenset()
            self._known[topic] = KnownTopic(known.id, known.partitions | earlier)
        self._write()

    def _covers(self, topic: str, now: KnownTopic) -> bool:
        known = self._known.get(topic)
        return known is not None and known.id == now.id and now.partitions <= known.partitions

    def append(self, change: AuditEntry) -> None:
        with _translate_write_errors(self.log):
            private_directory(self.log.parent)
            private_file(self.log)
        with _translate_write_errors(self.log), self.log.open("a+b") as log:
            torn = log.tell() > 0 and os.pread(log.fileno(), 1, log.tell() - 1) != b"\n"  # cut off by a crash
            log.write((b"\n" if torn else b"") + change.to_json().encode() + b"\n")
            log.flush()
            os.fsync(log.fileno())

    def history(self) -> list[AuditEntry]:
        if not self.log.exists():
            return []
        lines = self.log.read_text(encoding="utf-8").split("\n")
        return [AuditEntry.from_json(line) for line in lines if _is_json(line)]

    def _read(self) -> dict[str, KnownTopic]:
        try:
            raw = json.loads(self.marker.read_text(encoding="utf-8"))
            format_version.read_version(raw, FORMAT, str(self.marker))
            topics = raw["topics"]
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{self.marker} cannot be read: {error}", hint=f"rm '{self.marker}'") from error
        return {topic: KnownTopic(known["id"], frozenset(known["partitions"])) for topic, known in topics.items()}

    def _write(self) -> None:
        topics = {
            topic: {"id": known.id, "partitions": sorted(known.partitions)} for topic, known in self._known.items()
        }
        draft = self.marker.with_suffix(f".{os.getpid()}.draft")
        with _translate_write_errors(self.marker):
            private_directory(self.marker.parent)
            private_file(draft)
            with draft.open("w", encoding="utf-8") as file:
                json.dump({format_version.KEY: FORMAT, "topics": topics}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.marker)


@contextmanager
def _translate_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}",
            hint="choose a directory that this user may write: export HEADRACE_STATE=…",
        ) from error


def _is_json(line: str) -> bool:
    """False for a line that a crash cut off."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
