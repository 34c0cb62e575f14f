"""Tables that a TOML file names for its SQL, and what is wrong with them before Spark is there."""

import pytest

from headrace.errors import ConfigError
from headrace.runtime import config

GOOD = """
name = "clicks"
guarantee = "at-least-once"
[source]
kafka = "localhost:9092"
topics = ["clicks"]
[transform]
sql = "SELECT * FROM rows"
[sink]
console = true
[tables.articles]
csv = "articles.csv"
"""


@pytest.fixture
def load(tmp_path):
    (tmp_path / "articles.csv").write_text("id,name\n1,Pen\n")

    def load(text):
        (tmp_path / "clicks.toml").write_text(text)
        return config.load(str(tmp_path / "clicks.toml"))

    return load


def test_a_table_of_the_files_folder_is_taken(load):
    assert load(GOOD).pipeline.name == "clicks"
    assert load(GOOD + 'schema = "id BIGINT, name STRING"\noptions = { sep = ";", header = false }').pipeline


@pytest.mark.parametrize(
    ("wrong", "message", "hint"),
    [
        (GOOD.replace('"articles.csv"', '"article.csv"'), "there is no ", "correct the path"),
        (GOOD.replace("csv =", "cvs ="), "expected the path of one of: csv, json, parquet", "did you mean csv?"),
        (GOOD + 'shema = "id INT"', "unknown name shema", "did you mean schema?"),
        (GOOD + 'schema = "id INTEGR"', "INTEGR is not a type", "did you mean INTEGER?"),
        (GOOD.replace("tables.articles", "tables.rows"), "has the name of a source", "rename it"),
        (GOOD.replace("tables.articles", "tables.a-b"), "digits and _, got 'a-b'", "articles"),
        (GOOD.replace('[transform]\nsql = "SELECT * FROM rows"\n', ""), "are for a transform in SQL", "SELECT"),
    ],
)
def test_what_is_wrong_with_a_table_is_reported(load, wrong, message, hint):
    with pytest.raises(ConfigError) as refused:
        load(wrong)
    assert message in refused.value.message
    assert hint in refused.value.hint
