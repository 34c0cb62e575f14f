"""Pipelines from files: what is read, and that a mistake is named with its file, its line and its cure."""

import json
import subprocess
import sys
import textwrap

import pytest

import headrace as hr
from headrace.errors import ConfigError, UnsupportedGuarantee
from headrace.runtime import config
from headrace.support import optional_imports

GOOD = """
name = "clicks"
guarantee = "exactly-once"
[source]
kafka = "localhost:9092"
topics = ["clicks"]
format = { json = "user STRING, page STRING" }
[sink]
duckdb = "app.duckdb"
table = "clicks"
"""


@pytest.fixture
def toml(tmp_path):
    """Write a file and load it."""

    def load(text):
        path = tmp_path / "clicks.toml"
        path.write_text(textwrap.dedent(text))
        return config.load(str(path))

    return load


@pytest.fixture
def refused(toml, tmp_path):
    """Write a file that is refused; the message always names the file."""

    def load(text, kind=ConfigError):
        with pytest.raises(kind) as caught:
            toml(text)
        assert str(tmp_path / "clicks.toml") in caught.value.message
        return caught.value

    return load


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Write an app.py of this test alone and give its path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("app", "neighbour_of_app"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    def write(text):
        path = tmp_path / "app.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_a_file_becomes_the_pipeline_it_describes(toml):
    pipeline = toml(GOOD).pipeline
    assert pipeline.name == "clicks"
    assert pipeline.guaranteed is hr.Guarantee.EXACTLY_ONCE
    assert pipeline.source == hr.Kafka("localhost:9092", topics=["clicks"], format=hr.Json("user STRING, page STRING"))
    assert repr(pipeline.sink) == "sinks.DuckDB('app.duckdb', table='clicks')"
    assert pipeline.limits == hr.Limits()


def test_every_part_of_a_pipeline_can_be_configured(toml):
    pipeline = toml("""
        name = "clicks"
        guarantee = "at-least-once"
        engine = "direct"
        mirror_group = "shown"
        timeout = "10m"
        [source]
        kafka = "localhost:9092"
        topics = ["clicks", "taps"]
        start = "latest"
        format = { json = "user STRING", on_error = "drop" }
        options = { "security.protocol" = "SSL" }
        [transform]
        sql = "SELECT user FROM rows"
        [sink]
        parquet = "/tmp/out"
        [offsets]
        sqlite = "offsets.db"
        [limits]
        max_records = 1000
        per_partition = 10
        [expect]
        "user IS NOT NULL" = 0.99
    """).pipeline
    assert pipeline.source.topics == ("clicks", "taps")
    assert pipeline.source.start == "latest"
    assert pipeline.source.format == hr.Json("user STRING", on_error="drop")
    assert pipeline.source.options == {"security.protocol": "SSL"}
    assert repr(pipeline.sink) == "sinks.Parquet('/tmp/out')"
    assert repr(pipeline.store) == "stores.SQLite('offsets.db')"
    assert pipeline.limits == hr.Limits(1000, 10)
    assert (pipeline.mirror_group, pipeline.timeout) == ("shown", 600)
    assert pipeline.expect == {"user IS NOT NULL": 0.99}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"text"', hr.Text()),
        ('"bytes"', hr.Bytes()),
        ("{ text = true }", hr.Text()),
        ('{ text = true, on_error = "keep" }', hr.Text(on_error="keep")),
    ],
)
def test_formats_can_be_given_by_name(toml, written, meant):
    assert toml(GOOD.replace('{ json = "user STRING, page STRING" }', written)).pipeline.source.format == meant


def test_a_sink_of_kafka_can_write_avro(toml):
    avro = '{ avro = true, registry = "http://localhost:8081", namespace = "com.example" }'
    sink = toml(f"""
        name = "clean"
        guarantee = "exactly-once"
        [source]
        kafka = "localhost:9092"
        topics = ["clicks"]
        [sink]
        kafka = "localhost:9092"
        topic = "clean"
        format = {avro}
    """).pipeline.sink
    assert sink._mapping.format == hr.Avro(registry="http://localhost:8081", namespace="com.example")


def test_console_can_be_given_without_settings(toml):
    text = GOOD.replace('duckdb = "app.duckdb"\ntable = "clicks"', "console = true").replace("exactly", "at-least")
    assert repr(toml(text).pipeline.sink) == "sinks.Console(limit=20)"


def test_the_sql_transform_sees_the_batch_as_rows(toml):
    class Session:
        def sql(self, query):
            return query

    class Frame:
        sparkSession = Session()
        view = None

        def createOrReplaceTempView(self, name):
            self.view = name

    frame = Frame()
    transform = toml(GOOD + '[transform]\nsql = "SELECT page FROM rows"').pipeline.transform
    assert transform(frame) == "SELECT page FROM rows"
    assert frame.view == "rows"


@pytest.mark.parametrize(
    "written",
    [
        '[spark]\n"spark.driver.memory" = "4g"\n"spark.ui.enabled" = true\n"spark.sql.shuffle.partitions" = 8',
        '[spark]\nspark.driver.memory = "4g"\nspark.ui.enabled = true\nspark.sql.shuffle.partitions = 8',
    ],
    ids=["quoted", "dotted"],
)
def test_spark_options_keep_their_dotted_names(toml, written):
    assert toml(GOOD + written).spark == {
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
    }


def test_environment_variables_are_filled_in_everywhere(toml, monkeypatch):
    monkeypatch.setenv("BROKER", "kafka:9092")
    monkeypatch.setenv("TOPIC", "clicks-eu")
    monkeypatch.setenv("WHERE", "/data")
    text = GOOD.replace("localhost:9092", "${BROKER}").replace('["clicks"]', '["${TOPIC}"]')
    pipeline = toml(text.replace("app.duckdb", "${WHERE}/${TOPIC}.duckdb")).pipeline
    assert pipeline.source.bootstrap == "kafka:9092"
    assert pipeline.source.topics == ("clicks-eu",)
    assert repr(pipeline.sink) == "sinks.DuckDB('/data/clicks-eu.duckdb', table='clicks')"


@pytest.mark.parametrize("given", ["true", "false"])
def test_a_switch_may_come_from_the_environment(toml, monkeypatch, given):
    monkeypatch.setenv("RESUME", given)
    text = GOOD.replace('topics = ["clicks"]', 'topics = ["clicks"]\nresume = "${RESUME}"')
    assert toml(text).pipeline.source.resume is (given == "true")


def test_an_environment_variable_that_is_not_set_is_named(refused, monkeypatch):
    monkeypatch.delenv("BROKER", raising=False)
    error = refused(GOOD.replace("localhost:9092", "${BROKER}"))
    assert "the environment variable BROKER is not set" in error.message
    assert error.hint == "export BROKER=…"


def test_a_file_that_is_not_toml_is_named_with_the_line(refused):
    error = refused('name = "clicks"\nguarantee = exactly-once\n')
    assert "is not TOML" in error.message
    assert "line 2" in error.message


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "clicks.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(str(path))


@pytest.mark.parametrize("key", ["name", "guarantee", "source", "sink"])
def test_a_part_that_is_missing_is_named(refused, key):
    lines = [line for line in GOOD.splitlines() if not line.startswith((f"{key} =", f"[{key}]"))]
    if key == "source":
        lines = [line for line in lines if not line.startswith(("kafka", "topics", "format"))]
    if key == "sink":
        lines = [line for line in lines if not line.startswith(("duckdb", "table"))]
    assert f"{key} is missing" in refused("\n".join(lines)).message


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ('name = "clicks"', 'name = "clicks"\nguarantees = 1', "guarantees"),
        ("[sink]", "[sink]\ncolour = 1", "colour"),
        ("[sink]", "[transform]\nsqll = 'x'\n[sink]", "sqll"),
        ("topics =", "topic =", "topic"),
        ("[sink]", "[limits]\nmaximum = 1\n[sink]", "maximum"),
        ("page STRING", 'page STRING", on_err = "drop', "on_err"),
    ],
)
def test_an_unknown_key_is_named_with_the_known_ones(refused, before, after, named):
    error = refused(GOOD.replace(before, after))
    assert named in error.message
    assert error.hint


def test_an_unknown_sink_is_answered_with_the_known_ones(refused):
    message = refused(GOOD.replace("duckdb =", "duckdbb =")).message
    assert "[sink] names duckdbb, table" in message
    meant = message.partition("expected one of: ")[2].split(", ")
    assert {"console", "duckdb", "parquet"} <= set(meant)


def test_two_sinks_in_one_table_are_refused(refused):
    assert "[sink] names duckdb, parquet" in refused(GOOD + '\nparquet = "x"').message


@pytest.mark.parametrize("table", ["source", "sink", "transform", "limits", "offsets", "spark"])
def test_a_value_where_a_table_is_expected_is_refused(refused, table):
    text = GOOD.replace(f"[{table}]", f"[other_{table}]") if f"[{table}]" in GOOD else GOOD
    head = text.replace('name = "clicks"', f'name = "clicks"\n{table} = 5', 1)
    if f"[other_{table}]" in head:
        head = head[: head.index(f"[other_{table}]")]
        needed = '[sink]\nduckdb = "x"\ntable = "t"' if table == "source" else ""
        head += needed
    assert table in refused(head).message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('topics = ["clicks"]', "topics = 5"),
        ('{ json = "user STRING, page STRING" }', "5"),
        ('{ json = "user STRING, page STRING" }', "{ json = 5 }"),
        ('"app.duckdb"', "5"),
        ('table = "clicks"', "table = 5"),
        ('kafka = "localhost:9092"', "kafka = 9092"),
        ('kafka = "localhost:9092"', 'kafka = "localhost:9092"\noptions = 5'),
        ("[sink]", "[limits]\nmax_records = 'many'\n[sink]"),
        ('table = "clicks"', 'table = "clicks"\ncreate = "no"'),
        ('table = "clicks"', 'table = "clicks"\ncreate = 0'),
        ('duckdb = "app.duckdb"\ntable = "clicks"', 'kafka = "localhost:9092"\ntopic = "t"\ncreate = "false"'),
    ],
    ids=lambda text: text.splitlines()[-1],
)
def test_a_value_of_the_wrong_kind_is_wrong_use_and_not_a_crash(refused, before, after):
    assert refused(GOOD.replace(before, after)).exit_code == 2


def test_a_topic_as_one_string_is_refused_with_the_list_that_was_meant(refused):
    assert refused(GOOD.replace('["clicks"]', '"clicks"')).hint == "topics=['clicks']"


def test_a_guarantee_the_sink_cannot_give_keeps_its_kind_and_hint(refused):
    text = GOOD.replace('duckdb = "app.duckdb"\ntable = "clicks"', "console = true")
    error = refused(text, UnsupportedGuarantee)
    assert "Console cannot give exactly-once" in error.message
    assert "sinks.Postgres" in error.hint


# Python files

APP = """
import headrace as hr
from headrace import sinks

def pipeline(name):
    return hr.Pipeline(name=name, source=hr.Kafka("k:9092", topics=[name]), sink=sinks.Console(),
                       guarantee="at-least-once")
"""


def test_a_pipeline_is_found_by_its_name_in_the_file(python):
    path = python(APP + 'clicks = pipeline("clicks")\norders = pipeline("orders")\n')
    assert config.load(f"{path}:orders").pipeline.name == "orders"


def test_the_only_pipeline_of_a_file_needs_no_name(python):
    path = python(APP + 'clicks = pipeline("clicks")\n')
    assert config.load(str(path)).pipeline.name == "clicks"


def test_several_pipelines_without_a_name_are_listed(python):
    path = python(APP + 'clicks = pipeline("clicks")\norders = pipeline("orders")\n')
    with pytest.raises(ConfigError, match="has 2 pipelines: clicks, orders") as refused:
        config.load(str(path))
    assert refused.value.hint == f"headrace run {path}:NAME"


def test_a_name_that_is_not_there_is_answered_with_those_that_are(python):
    path = python(APP + 'clicks = pipeline("clicks")\n')
    with pytest.raises(ConfigError, match=r"no pipeline click in .*; pipelines: clicks") as refused:
        config.load(f"{path}:click")
    assert refused.value.hint == "did you mean clicks?"


def test_a_name_that_is_no_pipeline_is_refused(python):
    path = python(APP)
    with pytest.raises(ConfigError, match=r"no pipeline pipeline in .*; pipelines: none"):
        config.load(f"{path}:pipeline")


def test_a_file_without_a_pipeline_says_so(python):
    with pytest.raises(ConfigError, match="has 0 pipelines: none"):
        config.load(str(python("x = 1")))


def test_a_syntax_error_in_the_file_is_named_with_file_and_line(python):
    path = python("import headrace\nclicks = = 1\n")
    with pytest.raises(ConfigError, match=r"SyntaxError: .*app\.py, line 2") as refused:
        config.load(f"{path}:clicks")
    assert str(path) in refused.value.message


def test_an_error_in_the_file_is_named_with_its_line(python):
    path = python("import headrace\n\n\nundefined_name\n")
    with pytest.raises(ConfigError, match="NameError: name 'undefined_name' is not defined") as refused:
        config.load(str(path))
    assert str(path) in refused.value.message
    assert "line 4" in refused.value.message


def test_a_config_error_raised_while_the_file_is_read_comes_through_with_its_hint(python):
    path = python('import headrace as hr\nhr.Kafka("k:9092", topics="clicks")\n')
    with pytest.raises(ConfigError, match="one string") as refused:
        config.load(str(path))
    assert refused.value.hint == "topics=['clicks']"


def test_the_file_may_import_its_neighbours(python, tmp_path):
    (tmp_path / "neighbour_of_app.py").write_text("NAME = 'from-next-door'")
    path = python("import neighbour_of_app\n" + APP + "clicks = pipeline(neighbour_of_app.NAME)\n")
    assert config.load(str(path)).pipeline.name == "from-next-door"


def test_a_file_that_is_not_there_is_named_with_where_was_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        config.load("nowhere.py:clicks")
    assert refused.value.message == f"no file nowhere.py; looked in {tmp_path}"
    assert "headrace run app.py:clicks" in refused.value.hint


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="no file"):
        config.load(str(tmp_path))


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "clicks.yaml"
    path.write_text("name: clicks")
    with pytest.raises(ConfigError, match=r"neither a \.py nor a \.toml"):
        config.load(str(path))


def test_a_colon_in_a_path_that_exists_is_part_of_the_path(tmp_path):
    path = tmp_path / "a:b.toml"
    path.write_text(GOOD)
    assert config.load(str(path)).pipeline.name == "clicks"


# drivers that are not installed


def test_a_missing_driver_names_the_extra_that_brings_it():
    with pytest.raises(ImportError, match=r"pip install 'headrace\[postgres\]'") as missing:
        optional_imports.require("no_such_driver.part", extra="postgres")
    assert missing.value.name == "no_such_driver.part"


def test_a_driver_that_misses_something_of_its_own_is_not_blamed_on_the_extra(tmp_path, monkeypatch):
    (tmp_path / "half_a_driver.py").write_text("import its_own_missing_part")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="its_own_missing_part"):
        optional_imports.require("half_a_driver", extra="postgres")


def test_a_driver_that_is_there_is_returned():
    assert optional_imports.require("json", extra="none") is sys.modules["json"]


def test_a_duckdb_sink_without_duckdb_names_the_extra(monkeypatch, tmp_path):
    from headrace import sinks

    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ImportError, match=r"headrace\[duckdb\]"):
        sinks.DuckDB(tmp_path / "x.duckdb", table="t").open("clicks")


PROFILES = """
name = "clicks"
guarantee = "at-least-once"
[source]
kafka = "localhost:9092"
topics = ["clicks"]
format = { json = "user STRING" }
[sink]
console = true
[offsets]
sqlite = "offsets.db"
[limits]
max_records = 10
[profile.staging.source]
kafka = "staging:9092"
options = { "security.protocol" = "SSL" }
[profile.staging.limits]
max_records = 500
[profile.staging]
sink = { parquet = "out" }
"""


def test_a_profile_is_laid_over_the_rest(tmp_path, monkeypatch):
    file = tmp_path / "clicks.toml"
    file.write_text(PROFILES)
    plain = config.load(str(file)).pipeline
    assert (plain.source.bootstrap, plain.limits.max_records) == ("localhost:9092", 10)
    staged = config.load(str(file), "staging").pipeline
    assert (staged.source.bootstrap, staged.source.topics) == ("staging:9092", ("clicks",))
    assert staged.source.options == {"security.protocol": "SSL"}
    assert (staged.limits.max_records, type(staged.sink).__name__) == (500, "Parquet")
    monkeypatch.setenv("HEADRACE_PROFILE", "staging")
    assert config.load(str(file)).pipeline.source.bootstrap == "staging:9092"


def test_a_profile_may_set_options_that_are_called_like_a_sink(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(
        PROFILES
        + "[spark]\nspark.executor.instances = 8\nspark.driver.maxResultSize = '2g'\n"
        + "[profile.big.spark]\nspark.executor.memory = '16g'\n[profile]\nwrong = 'x'\n"
    )
    assert config.load(str(path), "big").spark == {
        "spark.executor.instances": "8",
        "spark.driver.maxResultSize": "2g",
        "spark.executor.memory": "16g",
    }
    with pytest.raises(ConfigError, match=r"expected a table \[profile\.wrong\]"):
        config.load(str(path), "wrong")


def test_a_profile_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    file = tmp_path / "clicks.toml"
    file.write_text(PROFILES)
    with pytest.raises(ConfigError, match="no profile production; profiles: staging"):
        config.load(str(file), "production")


def test_several_sources_in_a_file(tmp_path):
    file = tmp_path / "joined.toml"
    file.write_text(
        """
name = "joined"
guarantee = "at-least-once"
[sources.clicks]
kafka = "localhost:9092"
topics = ["clicks"]
start = 2026-11-01T00:00:00Z
max_lag = "1h"
[sources.users]
kafka = "other:9092"
pattern = "users.*"
cluster = "east"
key_format = "text"
location = { users = "host-1" }
[transform]
sql = "SELECT * FROM clicks"
[sink]
console = true
[offsets]
sqlite = "offsets.db"
"""
    )
    made = config.load(str(file)).pipeline
    assert list(made.sources) == ["clicks", "users"]
    assert made.topics is None
    assert made.sources["users"].location == {"users": "host-1"}
    file.write_text(file.read_text() + '[source]\nkafka = "k:1"\ntopics = ["a"]\n')
    with pytest.raises(ConfigError, match=r"expected \[source\] or \[sources\.NAME\], got both"):
        config.load(str(file))


def test_a_profile_may_read_in_another_way(tmp_path):
    file = tmp_path / "clicks.toml"
    file.write_text(
        PROFILES + '[profile.other.source]\npattern = "c.*"\n[profile.other.source.format]\ncsv = "user STRING"\n'
    )
    made = config.load(str(file), "other").pipeline
    assert (str(made.source.subscription), type(made.source.format).__name__) == ("topics like c.*", "Csv")


# near words


@pytest.mark.parametrize(
    ("good", "typo", "hint"),
    [
        ("guarantee =", "guarante =", "did you mean guarantee?"),
        ("[sink]", "[snk]", "did you mean sink?"),
        ("duckdb =", "duckbd =", "did you mean duckdb?"),
        ("table =", "tabel =", "did you mean table?"),
        ("topics =", "topic =", "did you mean topics?"),
        ("json =", "jsn =", "did you mean json?"),
        ("kafka =", "kafak =", "did you mean kafka?"),
        ("[sink]", "[profiles.staging]\n[sink]", "did you mean profile?"),
    ],
)
def test_a_word_that_is_not_known_is_answered_with_the_nearest(refused, good, typo, hint):
    assert refused(GOOD.replace(good, typo)).hint.startswith(hint)


def test_a_profile_that_is_not_there_is_answered_with_the_nearest(tmp_path):
    path = tmp_path / "clicks.toml"
    path.write_text(GOOD + '[profile.staging.sink]\nduckdb = "b.duckdb"\n')
    with pytest.raises(ConfigError) as caught:
        config.load(str(path), "stagin")
    assert caught.value.hint == "did you mean staging?"


NEEDS_SPARK = {
    "udf": 'clean = F.udf(lambda text: text, "string")',
    "column": 'WANTED = F.col("id") > 3',
    "schema": 'ROW = StructType.fromDDL("id INT")',
    "query": 'TABLE = SparkSession.active().sql("SELECT 1")',
}


@pytest.fixture(scope="module")
def refused_without_spark(tmp_path_factory):
    """What each file is refused with in a new process: Spark may have been started in this one."""
    folder = tmp_path_factory.mktemp("top_of_file")
    for name, line in NEEDS_SPARK.items():
        imports = "from pyspark.sql import SparkSession, functions as F\nfrom pyspark.sql.types import StructType\n"
        (folder / f"{name}.py").write_text(f"{imports}\n{line}\n")
    script = """
        import json, sys
        from headrace.runtime import config
        from headrace.errors import ConfigError

        refused = {}
        for name in sys.argv[1:]:
            try:
                config.load(f"{name}.py")
            except ConfigError as error:
                refused[name] = [error.message, error.hint]
        print(json.dumps(refused))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), *NEEDS_SPARK]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NEEDS_SPARK)
def test_what_needs_spark_at_the_top_of_a_file_is_answered_with_its_line_and_a_cure(refused_without_spark, name):
    message, hint = refused_without_spark[name]
    assert "line 4: cannot be imported" in message
    assert "Spark has not started yet: @F.udf(StringType())" in hint


def test_an_error_in_a_neighbour_is_named_with_its_own_line_too(python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "neighbour_of_app.py").write_text("\n\nassert False\n")
    with pytest.raises(ConfigError, match=r"line 2: cannot be imported: AssertionError at neighbour_of_app\.py:3$"):
        config.load(str(python("import os\nimport neighbour_of_app\n")))


def test_the_cure_for_functions_of_spark_at_the_top_of_a_file_works(python):
    path = python("""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType
        import headrace as hr
        from headrace import sinks

        @F.udf(StringType())
        def clean(text):
            return text

        clicks = hr.Pipeline(
            name="clicks",
            source=hr.Kafka("localhost:9092", topics=["clicks"]),
            sink=sinks.Console(),
            transform=lambda rows: rows.select(clean("value")),
            guarantee="at-least-once",
        )
    """)
    assert config.load(str(path)).pipeline.name == "clicks"


PIPELINE = (
    'hr.Pipeline(name="clicks", source=hr.Kafka("localhost:9092", topics=["clicks"]), sink=sinks.Memory(),'
    ' guarantee="{}")'
)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('sinks.DuckDB("x.duckdb", tabel="t")', "did you mean table? DuckDB takes: "),
        ('hr.Json("id INT", on_eror="fail")', "did you mean on_error? Json takes: "),
        ('hr.Kafka("ö:9092",\n    topic=["clicks"])', "did you mean topics? Kafka takes: bootstrap, topics"),
        ('sinks.Duckdb("x.duckdb")', "did you mean DuckDB?"),
        ('hr.Kafak("localhost:9092")', "did you mean Kafka?"),
        ("hr.Guarantee.EXACTLY_ONC", "did you mean EXACTLY_ONCE?"),
        ("from headrace.sinks import Duckdb", "did you mean DuckDB?"),
        ("from headrace.sink import DuckDB", "did you mean sinks?"),
        ("import headrce", "did you mean headrace?"),
        (PIPELINE.format("at-lest-once"), "did you mean at-least-once?"),
    ],
)
def test_a_word_that_a_python_file_gets_wrong_is_answered_with_the_nearest(python, line, hint):
    path = python(f"import headrace as hr\nfrom headrace import sinks\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        config.load(str(path))
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("line", ["1 / 0", "int(base=3, what=2)", "[].appendd", "import no_such_module_at_all"])
def test_other_errors_of_a_python_file_get_no_such_hint(python, line):
    with pytest.raises(ConfigError, match="line 1: cannot be imported") as caught:
        config.load(str(python(line)))
    assert caught.value.hint is None
