"""The dead letters of a pipeline, wherever they are kept: looked at, sent back, dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.kafka.letters import LetterTopic
from headrace.letters import Origin
from headrace.sinks.base import QuarantiningSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.letters import DeadLetters, Letter
    from headrace.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class LetterBox:
    """Opened for one question each: the file of an embedded sink is free in between."""

    pipeline: Pipeline

    def __post_init__(self) -> None:
        if self.pipeline.quarantine is None:
            raise ConfigError(
                f"{self.pipeline.name} has no dead letters", hint='dead_letters="…" on the pipeline says where they go'
            )

    @property
    def _place(self) -> DeadLetters:
        assert self.pipeline.quarantine is not None
        return self.pipeline.quarantine

    @property
    def _topic(self) -> LetterTopic | None:
        source, topic = self.pipeline.source, self._place.topic
        reader = f"headrace-letters-{self.pipeline.name}"
        return LetterTopic(source.bootstrap, source.options, topic, reader) if topic else None

    def __str__(self) -> str:
        return f"topic {self._place.topic}" if self._place.topic else f"table {self._place.table}"

    def letters(self) -> Sequence[Letter]:
        """Oldest first in each partition; of one that was sent to a topic twice, the last."""
        if (topic := self._topic) is not None:
            return list({letter.origin: letter for letter in topic.read()}.values())
        with self._sink() as sink:
            return sink.letters(self._place.table or "")

    def chosen(self, ids: Sequence[str], *, everything: bool) -> Sequence[Letter]:
        """Those that `ids` name as TOPIC:PARTITION:OFFSET, or all of them; ConfigError if one is not there."""
        if bool(ids) == everything:
            raise ConfigError("which dead letters are meant is not said", hint="TOPIC:PARTITION:OFFSET …, or --all")
        letters = self.letters()
        if everything:
            return letters
        by_origin = {letter.origin: letter for letter in letters}
        wanted = [parsed(text) for text in ids]
        if missing := [origin for origin in wanted if origin not in by_origin]:
            raise ConfigError(f"no dead letter of {missing[0]} in {self}", hint="headrace dead-letters list")
        return [by_origin[origin] for origin in wanted]

    def send_back(self, letters: Sequence[Letter], to: str | None) -> None:
        """On return they are in Kafka again."""
        source = self.pipeline.source
        LetterTopic(source.bootstrap, source.options, to or "").send_back(letters, to)

    def drop(self, letters: Sequence[Letter]) -> None:
        if (topic := self._topic) is not None:
            if {letter.origin for letter in letters} != {letter.origin for letter in self.letters()}:
                raise ConfigError(f"{topic!r} lets go of all letters or of none", hint="--all")
            topic.settle()
            return
        with self._sink() as sink:
            sink.drop_letters(self._place.table or "", [letter.origin for letter in letters])

    def _sink(self) -> QuarantiningSink:
        sink = self.pipeline.sink
        assert isinstance(sink, QuarantiningSink)
        return sink.open(self.pipeline.name)


def name(letter: Letter) -> str:
    return f"{letter.origin.topic}:{letter.origin.partition}:{letter.origin.offset}"


def parsed(text: str) -> Origin:
    topic, _, rest = text.rpartition(":")
    topic, _, partition = topic.rpartition(":")
    if not topic or not partition.isdigit() or not rest.isdigit():
        raise ConfigError(f"{text!r} does not name a record", hint="TOPIC:PARTITION:OFFSET, for example clicks:0:1234")
    return Origin(topic, int(partition), int(rest))
