"""Spark's settings in a private file: what Spark reads from it, and what a user's own arguments are."""

import stat

import pytest

from headrace.errors import ConfigError
from headrace.kafka.client_options import parse_properties
from headrace.spark import properties

SETTINGS = {
    "spark.hadoop.store.password": " p=ss: wörd\\#!\t${x}\nand a second line ",
    "spark.driver.memory": "2g",
    "other.key": "not Spark's, which would warn",
}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "spark.properties"


def test_every_value_is_read_as_it_was_given_and_only_by_this_user(file):
    given = properties.write_arguments(SETTINGS, ["pyspark-shell"], file)
    assert given == ["--properties-file", str(file), "--load-spark-defaults", "pyspark-shell"]
    assert parse_properties(file.read_text()) == {
        name: SETTINGS[name] for name in SETTINGS if name.startswith("spark.")
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("form", ["--properties-file {}", "--properties-file={}"])
def test_a_file_of_the_users_is_read_under_our_settings(file, tmp_path, form):
    theirs = tmp_path / "theirs.properties"
    theirs.write_text("spark.driver.memory 8g\nspark.eventLog.enabled=true")
    words = [*form.format(theirs).split(), "--conf", "spark.x=1", "pyspark-shell"]
    given = properties.write_arguments(SETTINGS, words, file)
    assert given == ["--properties-file", str(file), "--conf", "spark.x=1", "pyspark-shell"]
    found = parse_properties(file.read_text())
    assert (found["spark.driver.memory"], found["spark.eventLog.enabled"]) == ("2g", "true")


def test_a_file_that_is_not_there_is_named(file):
    with pytest.raises(ConfigError, match=r"cannot read the properties file .*: nowhere\.properties"):
        properties.write_arguments(SETTINGS, ["--properties-file", "nowhere.properties", "pyspark-shell"], file)
