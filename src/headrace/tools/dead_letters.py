"""Reads, replays and drops the dead letters of a pipeline, in a topic or in a table of the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.dead_letters import RecordId
from headrace.core.sink import DeadLetterTableSink, TransactionalSink
from headrace.errors import ConfigError
from headrace.kafka.admin import Admin
from headrace.kafka.client import Client
from headrace.kafka.dead_letter_topic import DeadLetterTopic
from headrace.kafka.source_set import source_for_topic
from headrace.tools.topics import describe_topics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.dead_letters import DeadLetter
    from headrace.kafka.source import Kafka
    from headrace.runtime.pipeline import Pipeline


class DeadLetterAdmin:
    """The dead letters of a pipeline. It opens the sink for one call at a time, so that an embedded database file is
    not locked in between."""

    def __init__(self, pipeline: Pipeline) -> None:
        if pipeline.dead_letter_target is None:
            raise ConfigError(
                f"{pipeline.name} has no dead letters", hint='dead_letters="…" on the pipeline says where they go'
            )
        self.pipeline = pipeline
        self._target = pipeline.dead_letter_target
        source, topic = next(iter(pipeline.sources.values())), self._target.topic
        reader = f"headrace-letters-{pipeline.name}"
        self._topic = DeadLetterTopic(source.bootstrap, source.options, topic, reader) if topic else None
        self._read: frozenset[RecordId] = frozenset()

    def __str__(self) -> str:
        return f"topic {self._target.topic}" if self._target.topic else f"table {self._target.table}"

    def letters(self) -> Sequence[DeadLetter]:
        """All dead letters, oldest first in each partition. If a topic has several of one record, the first counts.

        A run sends the same dead letter again after a crash. A later one that differs may be forged.
        """
        if self._topic is not None:
            found: dict[RecordId, DeadLetter] = {}
            for letter in self._topic.read():
                found.setdefault(letter.origin, letter)
            letters: Sequence[DeadLetter] = list(found.values())
        else:
            letters = self._stored()
        self._read = frozenset(letter.origin for letter in letters)
        return letters

    def _stored(self) -> Sequence[DeadLetter]:
        sink = self._table_sink
        with sink:
            self._open_for_reading(sink)
            return sink.read_dead_letters(self._target.table or "")

    def _open_for_reading(self, sink: DeadLetterTableSink) -> None:
        if not isinstance(sink, TransactionalSink):
            sink.open(self.pipeline.name)
        elif missing := sink.offsets.open_for_reading(self.pipeline.name):
            raise ConfigError(f"{self.pipeline.name} has no dead letters: {missing}", hint="run the pipeline first")

    def select(self, ids: Sequence[str], *, everything: bool) -> Sequence[DeadLetter]:
        """The dead letters with these `ids` (TOPIC:PARTITION:OFFSET), or all; ConfigError if one does not exist."""
        if bool(ids) == everything:
            raise ConfigError("no dead letters given", hint="TOPIC:PARTITION:OFFSET …, or --all")
        letters = self.letters()
        if everything:
            return letters
        by_origin = {letter.origin: letter for letter in letters}
        wanted = list(dict.fromkeys(parse_record_id(text) for text in ids))
        if missing := [origin for origin in wanted if origin not in by_origin]:
            raise ConfigError(f"no dead letter of {missing[0]} in {self}", hint="headrace dead-letters list")
        return [by_origin[origin] for origin in wanted]

    def replay(self, letters: Sequence[DeadLetter], to: str | None, *, execute: bool = True) -> None:
        """Send records back to Kafka, to the topic `to` or to the topics they came from, then drop their dead letters.

        Without `to`, records are sent only to topics that the pipeline reads, because the topic in a dead letter may be
        forged. ConfigError for a record that cannot be sent. Without `execute`, nothing is sent.
        """
        self._refuse_partial(letters)
        if missing := [letter.origin for letter in letters if letter.record_missing]:
            raise ConfigError(
                f"the dead letter of {missing[0]} does not hold the record, so nothing is sent",
                hint=f"headrace consume {missing[0].topic}"
                f" --from {missing[0].topic}:{missing[0].partition}:{missing[0].offset} --count 1 shows it,"
                " if Kafka still has it; headrace dead-letters drop deletes the dead letter",
            )
        sources = list(self.pipeline.sources.values())
        if to and len({source.bootstrap for source in sources}) > 1:
            raise ConfigError(
                f"{self.pipeline.name} reads several clusters; expected the topic {to} in a source of one of them",
                hint="without --to they go back to the topics they came from",
            )
        by_source = [(sources[0], letters)] if to else self._by_source(letters, sources)
        for source, dead_letters in by_source:
            # Check that the topics exist: a broker may create a topic when a record is sent to it, and the dead letters
            # would then be dropped although no pipeline reads that topic.
            wanted = {to} if to else {source.cluster_topic_name(letter.origin.topic) for letter in dead_letters}
            describe_topics(Admin(Client(source.bootstrap, source.options)), sorted(wanted))
        if not execute:
            return
        for source, dead_letters in by_source:
            DeadLetterTopic(source.bootstrap, source.options, to or "").send_back(
                dead_letters, to, source.cluster_topic_name
            )
        self.drop(letters)

    def _by_source(
        self, letters: Sequence[DeadLetter], sources: Sequence[Kafka]
    ) -> list[tuple[Kafka, Sequence[DeadLetter]]]:
        """Each source with the dead letters that go back to its topics."""
        owners: dict[int, list[DeadLetter]] = {}
        for letter in letters:
            number = source_for_topic(dict(enumerate(sources)), letter.origin.topic)
            if number is None:
                raise ConfigError(
                    f"{letter.origin}: {self.pipeline.name} does not read this topic, so nothing is sent to it",
                    hint="--to TOPIC sends them to that topic; or add the topic to the source, or drop the dead letter",
                )
            owners.setdefault(number, []).append(letter)
        return [(sources[number], dead_letters) for number, dead_letters in owners.items()]

    def drop(self, letters: Sequence[DeadLetter]) -> None:
        self._refuse_partial(letters)
        if self._topic is not None:
            self._topic.drop_read()
            return
        with self._table_sink.open(self.pipeline.name) as sink:
            sink.drop_dead_letters(self._target.table or "", [letter.origin for letter in letters])

    def _refuse_partial(self, letters: Sequence[DeadLetter]) -> None:
        if self._topic is not None and {letter.origin for letter in letters} != self._read:
            raise ConfigError(f"expected --all: single records of {self._topic!r} cannot be deleted", hint="--all")

    @property
    def _table_sink(self) -> DeadLetterTableSink:
        assert isinstance(self.pipeline.sink, DeadLetterTableSink)
        return self.pipeline.sink


def format_record_id(letter: DeadLetter) -> str:
    return f"{letter.origin.topic}:{letter.origin.partition}:{letter.origin.offset}"


def parse_record_id(text: str) -> RecordId:
    topic, _, rest = text.rpartition(":")
    topic, _, partition = topic.rpartition(":")
    if not topic or not partition.isdigit() or not rest.isdigit():
        raise ConfigError(f"expected TOPIC:PARTITION:OFFSET, got {text!r}", hint="for example clicks:0:1234")
    return RecordId(topic, int(partition), int(rest))
