"""What `headrace offsets` shows of a store, without a cluster."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from headrace import stores
from headrace.cli import offsets_show as verbs
from headrace.cli.main import app
from headrace.errors import RetriableError
from headrace.tools.offsets.editor import Lag, OffsetEditor, audit_entry
from headrace.types import Progress, TopicPartition

CLICKS, VIEWS = TopicPartition("clicks", 0), TopicPartition("views", 0)


def offsets(*arguments):
    return CliRunner().invoke(app, ["offsets", *map(str, arguments)])


@pytest.fixture
def stored(tmp_path):
    """A store in which offsets of two topics were moved one after the other."""

    def make(store):
        with store.open("svc"):
            for at in (CLICKS, VIEWS):
                progress = store.read()[0].progress
                store.set_offsets(progress, {at: 5}, audit_entry("seek", {}, {at: 5}, ""), {at.topic: "id"})

    return make


def test_topics_narrow_what_is_shown_and_the_audit_log(tmp_path, stored):
    stored(stores.SQLite(tmp_path / "offsets.db"))
    of = ["--store", f"sqlite:{tmp_path}/offsets.db", "--pipeline", "svc", "--json"]
    whole, part = (json.loads(offsets("show", *of, *more).stdout) for more in ([], ["--topic", "clicks"]))
    assert set(whole["offsets"]) == set(whole["topic_ids"]) == {"clicks", "views"}
    assert part["offsets"] == {"clicks": {"0": 5}}
    assert part["topic_ids"] == {"clicks": "id"}
    whole, part = (json.loads(offsets("history", *of, *more).stdout) for more in ([], ["--topic", "views"]))
    assert len(whole) == 2
    assert [list(entry["after"]) for entry in part] == [["views"]]


def test_a_watch_leaves_the_store_to_a_run_and_outlasts_a_cluster_that_does_not_answer(tmp_path, monkeypatch, stored):
    path = tmp_path / "offsets.duckdb"
    stored(stores.DuckDB(path))
    looks = iter([[Lag(CLICKS, 5, 7, 2, None)], RetriableError("no broker answers"), [Lag(CLICKS, 5, 8, 3, None)]])

    def lag_of(self, progress: Progress):
        assert progress.offsets == {CLICKS: 5, VIEWS: 5}
        if isinstance(found := next(looks), Exception):
            raise found
        return found

    slept = []

    def sleep(seconds):
        with stores.DuckDB(path).open("svc"):  # as a run does
            slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(OffsetEditor, "lag_of", lag_of)
    monkeypatch.setattr(verbs, "time", SimpleNamespace(sleep=sleep))  # other threads sleep too
    done = offsets("lag", "--store", f"duckdb:{path}", "--pipeline", "svc", "--watch", "--json")
    assert [json.loads(line)["partitions"][0]["end"] for line in done.stdout.splitlines() if line[:1] == "{"] == [7, 8]
    assert "no broker answers" in done.stderr
