"""To which folder a relative path belongs."""

from pathlib import Path

import pytest

from headrace.support.pipeline_folder import export, path_in_working_directory, relative_paths_in, resolve_path


@pytest.mark.parametrize("path", ["a.csv", "data/a.csv", "../a.csv"])
def test_a_relative_path_belongs_to_the_folder_of_the_file_that_is_loaded(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with relative_paths_in(tmp_path / "jobs"):
        found = resolve_path(path)
        assert found == tmp_path / "jobs" / path
        assert path_in_working_directory(found) == tmp_path / path
    assert resolve_path(path) == Path(path)


def test_an_absolute_path_stays_as_it_is(tmp_path):
    with relative_paths_in(tmp_path / "jobs"):
        assert resolve_path("/data/a.csv") == Path("/data/a.csv")
        assert path_in_working_directory(Path("/data/a.csv")) is None


def test_a_folder_within_a_folder_counts_until_it_ends(tmp_path):
    with relative_paths_in(tmp_path / "outer"):
        with relative_paths_in(tmp_path / "inner"):
            assert resolve_path("a") == tmp_path / "inner" / "a"
        assert resolve_path("a") == tmp_path / "outer" / "a"


def test_dots_are_resolved_only_where_that_leads_to_the_same_folder(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "jobs" / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    with relative_paths_in(tmp_path / "jobs" / ".." / "jobs"):
        assert resolve_path("a") == tmp_path / "jobs" / "a"
    with relative_paths_in(tmp_path / "jobs" / "link" / ".."):
        assert resolve_path("a").parent.samefile(tmp_path / "elsewhere")


@pytest.mark.parametrize(("worker", "found"), [(True, "jobs/a"), (False, "a")])
def test_a_python_worker_of_spark_knows_the_folder_and_other_processes_do_not(worker, found, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_FOLDER", "")
    export(tmp_path / "jobs")
    if worker:
        monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "secret")
    assert resolve_path("a") == (tmp_path / found if worker else Path("a"))
