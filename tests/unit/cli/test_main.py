"""The command line as a whole: its verbs, their options, their help."""

import re

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli import completion
from headrace.cli.main import app
from headrace.cli.options import kafka_options
from headrace.errors import ConfigError

ROOT = typer.main.get_command(app)


def verbs(command, path=()):
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from verbs(child, (*path, name))
    else:
        yield path, command


VERBS = dict(verbs(ROOT))


def takes_a_pipeline(command):
    return any("FILE[:NAME]" in (parameter.metavar or "") for parameter in command.params)


def takes(option, command):
    return any(option in parameter.opts for parameter in command.params)


def needed(command):
    """Words without which a verb says what is missing."""
    required = [one for one in command.params if one.required and one.name != "bootstrap"]
    words = [word for one in required for word in (*(one.opts[:1] if one.param_type_name == "option" else ()), "x")]
    return words + (["--all"] if takes("--all", command) else [])


@pytest.mark.parametrize("path", [path for path, command in VERBS.items() if takes_a_pipeline(command)], ids=" ".join)
def test_every_verb_that_takes_a_pipeline_takes_a_profile(path):
    assert takes("--profile", VERBS[path])


MORE = {
    ("consume",): ["clicks", "--pipeline"],
    ("offsets", "import"): ["--kafka-group", "g"],
    ("offsets", "reset"): ["--to", "earliest"],
    ("topics", "describe"): ["clicks", "--pipeline"],
}
"""What a verb needs, and how it is told the file if not as its first word."""


@pytest.mark.parametrize("path", [path for path, command in VERBS.items() if takes_a_pipeline(command)], ids=" ".join)
def test_every_verb_that_takes_a_pipeline_reads_it_with_the_profile(path, tmp_path):
    file = tmp_path / "clicks.toml"
    file.write_text('name = "clicks"\n[profile.staging.source]\nkafka = "localhost:1"\n')
    more = MORE.get(path, [])
    words = [*more, str(file)] if more[-1:] == ["--pipeline"] else [str(file), *more]
    words += ["clicks:0=3"] if path == ("offsets", "seek") else []
    words += ["--bootstrap", "localhost:1"] if takes("--bootstrap", VERBS[path]) else []
    done = CliRunner().invoke(app, [*path, *words, "--profile", "production"])
    assert isinstance(done.exception, ConfigError), done.output
    assert "no profile production; profiles: staging" in done.exception.message


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_verb_has_help_in_which_no_bracket_is_lost(path):
    done = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})
    assert done.exit_code == 0
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stdout).split())
    for parameter in VERBS[path].params:
        for bracket in re.findall(r"\[profile\.NAME\]|\[FILE\[:NAME\]\]|FILE\[:NAME\]", _plain(parameter)):
            assert bracket in shown, shown


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_verb_has_help_with_an_example_of_itself(path):
    command = VERBS[path]
    examples = re.findall(rf"headrace {' '.join(path)}\b.*", command.epilog or "")
    assert examples
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for example in examples for word in re.findall(r"(?<= )--[a-z-]+", example)} <= known


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_option_and_argument_has_a_help_text(path):
    assert [parameter.name for parameter in VERBS[path].params if not getattr(parameter, "help", None)] == []


def _plain(parameter):
    return f"{parameter.metavar} {getattr(parameter, 'help', '')}".replace("\\[", "[")


@pytest.mark.parametrize(
    ("option", "said", "hint"),
    [
        ("foo=bar", "unknown option foo", "NAME=VALUE, for example"),
        ("sesion.timeout.ms=3", "no option sesion.timeout.ms", "did you mean session.timeout.ms?"),
        ("startingOffsets=x", "an option of Spark's source", "start="),
    ],
)
@pytest.mark.parametrize("path", [path for path, command in VERBS.items() if takes("--option", command)], ids=" ".join)
def test_an_option_that_no_client_has_is_refused_by_every_tool(path, option, said, hint):
    done = CliRunner().invoke(app, [*path, *needed(VERBS[path]), "--bootstrap", "localhost:1", "--option", option])
    assert isinstance(done.exception, ConfigError), done.output
    assert said in done.exception.message
    assert hint in done.exception.hint


@pytest.mark.parametrize(
    "path",
    [path for path, command in VERBS.items() if takes("--bootstrap", command) and path != ("doctor",)],
    ids=" ".join,
)
def test_what_cannot_be_an_address_is_refused_before_anybody_is_asked(path):
    done = CliRunner().invoke(app, [*path, *needed(VERBS[path]), "--bootstrap", "localhost"])
    assert isinstance(done.exception, ConfigError), done.output
    assert done.exception.message == "bootstrap: 'localhost' has no port; expected host:port"


@pytest.mark.parametrize("name", ["acks", "security.protocol", "queue.buffering.max.ms", "ssl.ca.location", "group.id"])
def test_an_option_of_librdkafka_or_of_javas_client_is_taken(name):
    assert kafka_options([f"{name}=x"], None) == {name: "x"}


def test_commands_are_listed_in_the_order_of_use():
    first = ["demo", "dev", "topics", "produce", "consume", "check", "run", "offsets"]
    assert ROOT.list_commands(None)[: len(first)] == first


def test_offsets_verbs_are_listed_looking_first():
    offsets = ROOT.commands["offsets"]
    names = offsets.list_commands(None)
    assert names[:3] == ["show", "lag", "history"]


def completed(*words, directory=None):
    """What bash is given for the last word."""
    environment = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["headrace", *words])}
    environment["COMP_CWORD"] = str(len(words))
    done = CliRunner().invoke(app, [], prog_name="headrace", env=environment)
    return done.stdout.split()


def test_the_shell_completes_pipelines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "clicks.toml").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "app.py").write_text(
        "import headrace as hr\nclicks = hr.Pipeline(name='c')\nother = 3\nraise SystemExit('it is read, not run')\n"
    )
    assert completed("run", "") == ["app.py", "jobs/"]
    assert completed("check", "jobs/") == ["jobs/clicks.toml"]
    assert completed("offsets", "lag", "app.py:") == ["app.py:clicks"]
    assert completed("dead-letters", "list", "nowhere/") == []


def completed_by_bash(*words):
    """What bash is given where it has split the words as it does: at each colon, too."""
    environment = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(["headrace", *words])}
    environment["COMP_CWORD"] = str(len(words))
    completion.join_words(environment)
    return CliRunner().invoke(app, [], prog_name="headrace", env=environment).stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["run", "app.py", ":"], ["clicks", "clean", "other"]),
        (["run", "app.py", ":", "cl"], ["clicks", "clean"]),
        (["run", "app.py", ":", "clicks", "--prof"], ["--profile"]),
        (["produce", "--bootstrap", "localhost", ":", "9092", "t", "--lin"], ["--linger"]),
        (["produce", "t", "--key-separator", ":", "--lin"], ["--linger"]),
    ],
)
def test_bash_completes_pipelines_though_it_splits_words_at_colons(tmp_path, monkeypatch, words, found):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(
        "clicks = hr.Pipeline(name='c')\nclean: hr.Pipeline = hr.Pipeline(name='d')\nother: Any = Pipeline()\nx: int\n"
    )
    assert completed_by_bash(*words) == found


def test_topics_are_completed_from_the_pipeline_that_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "127.0.0.1:1")
    (tmp_path / "clicks.toml").write_text(
        'name = "clicks"\nguarantee = "at-least-once"\n[source]\nkafka = "127.0.0.1:2"\ntopics = ["clicks", "views"]\n'
        "[sink]\nconsole = true\n"
    )
    assert completed("offsets", "lag", "clicks.toml", "--topic", "cl") == ["clicks"]


def test_the_shell_completes_dev_servers():
    assert completed("dev", "up", "z") == ["zookeeper"]
    assert completed("dev", "up", "kafka", "ka") == []


def test_completion_says_nothing_about_a_cluster_that_does_not_answer(monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "127.0.0.1:1")
    assert completed("consume", "cl") == []
    monkeypatch.delenv("KAFKA_BOOTSTRAP")
    assert completed("groups", "describe", "cl") == []


def test_produce_takes_the_password_of_a_registry_from_the_environment(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setenv("PASSWORD", "s3cret")
    monkeypatch.setattr(
        "headrace.formats.schema_registry.SchemaRegistry.register_schema", lambda self, *_: asked.append(self.url) or 1
    )
    schema = tmp_path / "click.avsc"
    schema.write_text('{"type": "record", "name": "Click", "fields": [{"name": "id", "type": "int"}]}')
    registry = ["--avro", str(schema), "--registry", "http://me:${PASSWORD}@localhost:1"]
    CliRunner().invoke(app, ["produce", "t", "--bootstrap", "localhost:1", "--sample", "words", *registry])
    assert asked == ["http://me:s3cret@localhost:1"]
