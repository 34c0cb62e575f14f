"""State, history and offsets are files of one user."""

import os
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import stores
from headrace.connectors.kafka.local_state import LocalGroupState
from headrace.core.state import AuditEntry
from headrace.errors import ConfigError
from headrace.spark import privacy
from headrace.support import paths
from headrace.tools.offsets.editor import Undo
from headrace.types import Progress, TopicPartition


@pytest.fixture
def state(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(directory):
    return [str(path) for path in (directory, *directory.rglob("*")) if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_missing_directories_are_made_for_this_user_and_existing_ones_stay_as_they_are(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    paths.private_directory(shared / "a" / "b")
    assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in (shared, shared / "a", shared / "a" / "b")] == [
        "0o755",
        "0o700",
        "0o700",
    ]


def test_directories_of_the_state_that_are_open_to_others_are_closed(state):
    (state / "dev").mkdir(parents=True)
    paths.private_directory(state / "dev")
    assert open_to_others(state / "dev") == []


@pytest.mark.parametrize("kind", [stores.SQLite, stores.DuckDB])
def test_a_new_file_of_offsets_is_for_this_user(kind, state):
    with kind(state / "offsets").open("p"):
        assert open_to_others(state) == []


def test_the_log_that_duckdb_makes_after_a_checkpoint_has_the_mode_of_the_file(tmp_path):
    file = tmp_path / "offsets.db"
    with stores.DuckDB(file).open("p") as store:
        for mode in (0o600, 0o640):
            file.chmod(mode)
            store._connection.execute("CHECKPOINT")
            with store.transaction() as connection:
                connection.execute(f"CREATE TABLE t{mode} (a INT)")
            assert stat.S_IMODE((tmp_path / "offsets.db.wal").stat().st_mode) == mode


def test_what_duckdb_writes_when_memory_is_short_is_for_this_user(tmp_path):
    with stores.DuckDB(tmp_path / "offsets.db").open("p") as store:
        execute = store._connection.execute
        execute("SET memory_limit = '60MB'")
        execute("SET threads = 1")
        execute("CREATE TEMP TABLE t AS SELECT repeat('a', 100) || i AS s FROM range(1000000) r(i) ORDER BY s")
        spilled = tmp_path / "offsets.db.tmp"
        assert list(spilled.iterdir()), "else there would be nothing to read"
        assert stat.S_IMODE(spilled.stat().st_mode) == 0o700
    assert not spilled.exists()


def test_a_file_of_offsets_that_exists_keeps_its_mode(tmp_path):
    stores.SQLite(tmp_path / "offsets.db").open("p").close()
    (tmp_path / "offsets.db").chmod(0o640)
    stores.SQLite(tmp_path / "offsets.db").open("p").close()
    assert oct(stat.S_IMODE((tmp_path / "offsets.db").stat().st_mode)) == "0o640"


def test_a_private_file_that_was_open_to_others_is_closed_before_it_is_written(tmp_path):
    file = tmp_path / "server.properties"
    file.touch(0o644)
    paths.write_private(file, "password")
    assert (oct(stat.S_IMODE(file.stat().st_mode)), file.read_text()) == ("0o600", "password")


def test_history_topics_and_undo_files_are_for_this_user(state):
    remembered = LocalGroupState("group", "cluster")
    remembered.remember(Progress({TopicPartition("t", 0): 1}))
    remembered.append(AuditEntry("2026-01-01T00:00:00+00:00", "me", "seek", {}, {}))
    Undo("p", {TopicPartition("t", 0): 1}, {TopicPartition("t", 0): 2}).write()
    assert open_to_others(state) == []
    assert len([path for path in state.rglob("*") if path.is_file()]) == 3


def test_a_stored_secret_is_generated_once_by_however_many_processes(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: paths.stored_secret(tmp_path / "new" / "password"), range(32)))
    assert len(found) == 1
    assert len(found.pop()) >= 32
    assert open_to_others(tmp_path / "new") == []
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["password"]


def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            paths.private_directory(path)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where every user may write."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_sparks_scratch_files_are_in_a_directory_of_this_user(temporary):
    found = privacy.create_scratch_directory()
    assert found.parent == temporary
    assert open_to_others(found) == []
    found.chmod(0o777)
    assert open_to_others(privacy.create_scratch_directory()) == []


@pytest.mark.parametrize("trap", ["link", "file", "directory"])
def test_a_scratch_directory_that_somebody_else_put_there_is_refused(trap, temporary, monkeypatch):
    if trap == "directory":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 54_321)
    place = temporary / f"headrace-{os.geteuid()}"
    (temporary / "theirs").mkdir()
    make = {"link": lambda: place.symlink_to("theirs"), "file": place.touch, "directory": place.mkdir}
    make[trap]()
    with pytest.raises(ConfigError, match="is not a directory of this user") as refused:
        privacy.create_scratch_directory()
    assert "TMPDIR" in refused.value.hint
