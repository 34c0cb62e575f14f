"""`${NAME}` in options of the command line that may hold a password."""

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.cli.options import expand_environment, spark_options
from headrace.errors import ConfigError

PIPELINE = """
name = "clicks"
guarantee = "at-least-once"
source = { kafka = "127.0.0.1:1", topics = ["clicks"], format = "text" }
sink = { console = true }
"""


def test_a_spark_option_takes_its_secret_from_the_environment(monkeypatch):
    monkeypatch.setenv("STORE_PASSWORD", "geheim")
    assert spark_options(["spark.hadoop.x=${STORE_PASSWORD}", "spark.y=${spark.x}"]) == {
        "spark.hadoop.x": "geheim",
        "spark.y": "${spark.x}",
    }


@pytest.mark.parametrize(
    "words",
    [
        ["offsets", "show", "--store", "sqlite:${NOT_SET}", "--pipeline", "clicks"],
        ["offsets", "copy", "--from", "sqlite:${NOT_SET}", "--to", "sqlite:x", "--pipeline", "clicks"],
        ["offsets", "copy", "--from", "sqlite:x", "--to", "sqlite:${NOT_SET}", "--pipeline", "clicks"],
        ["consume", "clicks", "--registry", "http://user:${NOT_SET}@localhost:1"],
        ["consume", "clicks", "--bootstrap", "h:1", "--option", "sasl.password=${NOT_SET}"],
        ["produce", "clicks", "--file", "x", "--avro", "x", "--registry", "http://user:${NOT_SET}@localhost:1"],
        ["run", "clicks.toml", "--spark", "spark.hadoop.x=${NOT_SET}"],
        ["check", "clicks.toml", "--spark", "spark.hadoop.x=${NOT_SET}"],
    ],
    ids=lambda words: f"{words[0]} {next(word for word in reversed(words) if word.startswith('--'))}",
)
def test_every_option_that_may_hold_a_password_is_expanded(monkeypatch, tmp_path, words):
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.toml").write_text(PIPELINE)
    failed = CliRunner().invoke(app, words)
    assert isinstance(failed.exception, ConfigError)
    assert failed.exception.message == "the environment variable NOT_SET is not set"


def test_what_is_not_given_stays_so():
    assert expand_environment(None) is None
