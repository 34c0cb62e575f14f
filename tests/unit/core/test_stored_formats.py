"""State that the first format stored is read, and what a newer format stored is refused.

The files in tests/stored/format_1 were written before stored texts had a version.
"""

import json
from pathlib import Path

import pytest

from headrace.connectors.kafka.local_state import LocalGroupState
from headrace.connectors.zookeeper import znodes
from headrace.core.offset_store import DocumentStore
from headrace.core.state import AuditEntry, RunLease, State
from headrace.errors import ConfigError
from headrace.kafka import commit_metadata
from headrace.kafka.commit_metadata import CommittedOffset
from headrace.types import Batch, Progress, Range, TopicPartition

STORED = Path(__file__).parents[2] / "stored" / "format_1"
FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
IDS = {"clicks": "q1Zz0b3WTm2u0w"}
STATE = State(
    Progress(
        {FIRST: 120, SECOND: 95},
        Batch(8, (Range(FIRST, 120, 150), Range(SECOND, 95, 97)), IDS, epoch=1),
        IDS,
        last_batch=7,
        epoch=1,
    ),
    RunLease("host-1", 4711, 1763500000.5, 1763500030.25, "5f0c:4026531836"),
)
ENTRY = AuditEntry(
    1763500001.0, "ada", "reset", {FIRST: 150, SECOND: 95}, {FIRST: 120, SECOND: 95}, "moved back by 30", 7
)
OFFSETS = {FIRST: znodes.VersionedOffset(120, 3), SECOND: znodes.VersionedOffset(95, 1)}


def stored(name):
    return (STORED / name).read_text().strip()


class OneDocument(DocumentStore):
    def __init__(self, text):
        self.text = text

    def get(self):
        return self.text, 0

    def put(self, text, version):
        self.text = text
        return True


def read_document(text):
    store = OneDocument(text)
    return store.read()[0], store.history()


def write_document():
    store = OneDocument(None)
    store.swap(store.read()[1], State(), STATE, ENTRY)
    return store.text


def read_group(text):
    return commit_metadata.decode_group(
        {TopicPartition(topic, number): CommittedOffset(*entry) for topic, number, *entry in json.loads(text)}
    )


def write_group():
    entries = commit_metadata.metadata_updates({}, STATE, everything=True)
    return json.dumps([[at.topic, at.partition, *entry] for at, entry in entries.items()])


TEXTS = {
    "state.json": (State.from_json, STATE, STATE.to_json),
    "document.json": (read_document, (STATE, [ENTRY]), write_document),
    "audit_entry.json": (AuditEntry.from_json, ENTRY, ENTRY.to_json),
    "znode.json": (
        lambda text: znodes.decode(text.encode(), OFFSETS),
        STATE,
        lambda: znodes.encode(STATE, OFFSETS).decode(),
    ),
    "group_metadata.json": (read_group, STATE, write_group),
    "heartbeat.json": (RunLease.from_json, STATE.run, STATE.run.to_json),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_the_first_format_stored_is_read(name):
    read, value, _ = TEXTS[name]
    assert read(stored(name)) == value


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_stored_today_carries_its_format_and_is_read_again(name):
    read, value, write = TEXTS[name]
    text = write()
    assert "format" in text
    assert read(text) == value


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_newer_version_stored_is_refused_with_the_cure(name):
    read, _, write = TEXTS[name]
    newer = write().replace('"format": 1', '"format": 2').replace('"format":1', '"format":2')
    newer = newer.replace('\\"format\\":1', '\\"format\\":2')  # a JSON text in a JSON text
    with pytest.raises(ConfigError, match="is stored in format 2: expected at most format 1") as refused:
        read(newer)
    assert "upgrade" in refused.value.hint


def test_a_format_that_is_not_a_number_is_refused():
    with pytest.raises(ConfigError, match="expected a whole number as its format, got 'x'"):
        State.from_json(STATE.to_json().replace('"format": 1', '"format": "x"'))


@pytest.fixture
def local_state(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    state = LocalGroupState("clicks", "cluster-1")
    for file, name in ((state.marker, "local_group_state.json"), (state.log, "local_group_history.jsonl")):
        file.parent.mkdir(parents=True)
        file.write_text(stored(name) + "\n")
    return LocalGroupState("clicks", "cluster-1")


def test_the_local_files_of_a_group_that_the_first_format_stored_are_read(local_state):
    assert {name: known.partitions for name, known in local_state.topics.items()} == {"clicks": {0, 1}}
    assert local_state.history() == [ENTRY]
    local_state.remember(Progress({TopicPartition("views", 0): 1}))
    assert json.loads(local_state.marker.read_text())["format"] == 1
    assert set(LocalGroupState("clicks", "cluster-1").topics) == {"clicks", "views"}


def test_a_local_file_of_a_newer_version_is_refused(local_state):
    local_state.marker.write_text('{"format": 2, "topics": {}}')
    with pytest.raises(ConfigError, match="is stored in format 2"):
        LocalGroupState("clicks", "cluster-1")
