"""The SQLite offset store: files that it cannot use."""

import pytest

from headrace import stores
from headrace.errors import ConfigError


def test_a_file_that_is_no_sqlite_is_a_mistake(tmp_path):
    path = tmp_path / "offsets.db"
    path.write_text("this is a text file, and a long one at that " * 300)
    with pytest.raises(ConfigError, match="not a usable SQLite file"):
        stores.SQLite(path).open("clicks")
    assert path.read_text().startswith("this is a text file")


def test_a_directory_in_place_of_the_offsets_is_a_mistake_and_not_retried(tmp_path):
    with pytest.raises(ConfigError, match="cannot be kept in"):
        stores.SQLite(tmp_path).open("clicks")
