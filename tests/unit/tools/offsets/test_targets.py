"""Where offsets are to go, and where they can come from."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace import stores
from headrace.core.planner import TopicLog
from headrace.core.state import RunLease
from headrace.errors import ConfigError, OffsetConflict
from headrace.runtime import heartbeat
from headrace.tools.offsets import editor as offset_editor
from headrace.tools.offsets import imports
from headrace.tools.offsets.editor import OffsetEditor
from headrace.tools.offsets.targets import OffsetChange, ResetTarget, duration, moves, parse, stale, to_offsets
from headrace.types import Batch, Progress, Range, TopicPartition

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
LOGS = {"t": TopicLog("id", {A: 100, B: 0}, {A: 200, B: 50})}
PROGRESS = Progress({A: 150, B: 50})


def test_no_admin_client_is_asked_for_the_offsets_of_a_group():
    """It takes the process down when the coordinator moves while it asks (librdkafka #5040, #5397)."""
    sources = sorted(Path(imports.__file__).parents[1].rglob("*.py"))
    assert [
        str(source) for source in sources if "list_consumer_group_offsets" in source.read_text(encoding="utf-8")
    ] == []


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", ResetTarget(edge="earliest")),
        ("latest", ResetTarget(edge="latest")),
        ("1000", ResetTarget(offset=1000)),
        ("shift:-1000", ResetTarget(shift=-1000)),
        ("shift:+5", ResetTarget(shift=5)),
        ("1h", ResetTarget(time=NOW - timedelta(hours=1))),
        ("PT1H30M", ResetTarget(time=NOW - timedelta(minutes=90))),
        ("P2D", ResetTarget(time=NOW - timedelta(days=2))),
        ("2026-11-01T12:00:00Z", ResetTarget(time=datetime(2026, 11, 1, 12, tzinfo=UTC))),
        ("2026-11-01T14:00:00+02:00", ResetTarget(time=datetime(2026, 11, 1, 12, tzinfo=UTC))),
        ("2026-11-01", ResetTarget(time=datetime(2026, 11, 1, tzinfo=UTC))),
    ],
)
def test_a_place_is_understood(text, target):
    assert parse(text, NOW) == target


@pytest.mark.parametrize("text", ["", "soon", "-5", "shift:", "shift:x", "PT", "P", "1y", "2026-13-01", "999999d"])
def test_a_place_that_is_none_is_refused_with_examples(text):
    with pytest.raises(ConfigError) as caught:
        parse(text, NOW)
    assert "earliest" in caught.value.hint


def test_a_duration_without_a_number_is_none():
    assert duration("PT") is None


def at(place, **more):
    return {
        move.at: move
        for move in moves(PROGRESS, LOGS, parse(place, NOW), more.get("at_time", {}), more.get("only", ()))
    }


def test_earliest_and_latest_are_the_edges_of_the_log():
    assert {p: m.after for p, m in at("earliest").items()} == {A: 100, B: 0}
    assert {p: m.after for p, m in at("latest").items()} == {A: 200, B: 50}


def test_a_shift_counts_from_the_offset_that_is_there():
    moved = at("shift:-20")
    assert moved[A].after == 130
    assert moved[A].difference == -20


def test_an_offset_the_log_does_not_have_is_marked_and_never_clamped():
    moved = at("shift:-60")
    assert moved[A].after == 90
    assert moved[A].outside
    assert not at("shift:-10")[B].outside
    assert at("201")[A].outside
    assert not at("200")[A].outside  # the end itself is the next record to come


def test_a_time_after_the_last_record_means_the_next_record_to_come():
    moved = at("1h", at_time={A: 170})
    assert moved[A].after == 170
    assert moved[B].after == 50


def test_one_partition_can_be_moved_alone():
    assert list(at("earliest", only=[B])) == [B]


def test_a_partition_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"t\[9\]"):
        at("earliest", only=[TopicPartition("t", 9)])


def test_offsets_of_a_partition_the_cluster_does_not_have_are_outside():
    (move,) = to_offsets(PROGRESS, LOGS, {TopicPartition("t", 9): 0})
    assert move.outside


def test_offsets_survive_a_trip_through_sparks_json():
    named = imports.to_spark_json({A: 1, B: 2, TopicPartition("u", 0): 3})
    assert named == {"t": {"0": 1, "1": 2}, "u": {"0": 3}}
    assert imports.from_spark_json(named, "here") == {A: 1, B: 2, TopicPartition("u", 0): 3}


@pytest.mark.parametrize("raw", [[], {"t": 5}, {"t": {"x": 1}}, {"t": {"0": "many"}}, {"t": {"0": -1}}, "text"])
def test_what_is_not_offsets_is_refused_by_name(raw):
    with pytest.raises(ConfigError, match="there"):
        imports.from_spark_json(raw, "there")


def test_lines_of_kafkas_own_tool_are_read(tmp_path):
    file = tmp_path / "offsets.csv"
    file.write_text('t,0,10\n"t",1,20\n\n')
    assert imports.from_file(file) == {A: 10, B: 20}
    file.write_text('"group","t",0,10\n')
    assert imports.from_file(file) == {A: 10}
    file.write_text("t,0,10\nt,one,20\n")
    with pytest.raises(ConfigError, match="line 2"):
        imports.from_file(file)


def test_an_exported_file_is_read_back(tmp_path):
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps(imports.to_spark_json({A: 10})))
    assert imports.from_file(file) == {A: 10}


def checkpoint(tmp_path, offsets, commits):
    for folder, names in (("offsets", offsets), ("commits", commits)):
        (tmp_path / folder).mkdir()
        for name in names:
            content = f'v1\n{{"batchWatermarkMs":0}}\n{{"t":{{"0":{name}0}}}}' if folder == "offsets" else "v1\n{}"
            (tmp_path / folder / str(name)).write_text(content)
            (tmp_path / folder / f".{name}.crc").write_text("x")
    return tmp_path


def test_a_checkpoint_is_read_at_its_last_committed_batch(tmp_path):
    offsets, word = imports.from_spark_checkpoint(checkpoint(tmp_path, [9, 10, 11], [9, 10]))
    assert offsets == {A: 100}
    assert "batch 11 was begun there and not committed" in word


def test_a_folder_that_is_no_checkpoint_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="commits"):
        imports.from_spark_checkpoint(tmp_path)


def test_offsets_of_a_recreated_topic_are_moved_together():
    old = Progress({A: 500, B: 500}, topic_ids={"t": "old"})
    new = {"t": TopicLog("new", {A: 0}, {A: 5})}
    assert stale(old, new, {A: 0}) == {B: 0}
    assert stale(Progress(old.offsets, topic_ids={"t": "new"}), new, {A: 0}) == {}
    with pytest.raises(ConfigError, match=r"t\[0\] has an offset of the topic before"):
        stale(old, new, {B: 0})


def test_a_move_of_some_partitions_of_a_pending_batch_is_refused():
    """The batch may be stored already, and the partition that stays would be stored twice."""
    store = stores.Memory().open("p")
    store.begin(Batch(1, (Range(A, 0, 10), Range(B, 0, 10)), {}))
    with OffsetEditor("p", store, None, {}, changes=True) as editor:
        with pytest.raises(OffsetConflict, match=r"batch 1 of p was begun .* stored twice") as refused:
            editor.execute(store.load(), [OffsetChange(A, 0, 50, 0, 50)], "seek", "")
        assert "--force" in refused.value.hint
        with pytest.raises(OffsetConflict, match=r"t\[0\] \[0, 10\) of it would be read again"):
            editor.execute(store.load(), [OffsetChange(A, 0, 5, 0, 50), OffsetChange(B, 0, 10, 0, 50)], "seek", "")
        assert store.load().pending is not None


@pytest.mark.parametrize(
    ("version", "live_for"), [("boot pid:[1]", heartbeat.LEASE_TIMEOUT), (None, heartbeat.OLD_LEASE_TIMEOUT)]
)
def test_a_run_elsewhere_counts_as_live_as_long_as_its_version_may_be_silent(version, live_for, monkeypatch):
    """One of the version before signed every 30 seconds, and only between its batches."""
    monkeypatch.setattr(offset_editor, "wait_until", lambda *_: False)  # no heartbeat comes
    store = stores.Memory().open("p")
    editor = OffsetEditor("p", store, None, {})
    for silent, live in ((live_for - 5, True), (live_for + 5, False)):
        store.set_lease(RunLease("other-host", 1, started=0.0, beat=time.time() - silent, pid_space=version))
        assert (editor.active_run() is not None) is live
