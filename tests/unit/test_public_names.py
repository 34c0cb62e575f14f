"""The public names, and that looking at them stays light."""

import ast
import inspect
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import headrace
from headrace import sinks, stores, testing
from support.project import ROOT

HEAVY = {"pyspark", "py4j", "confluent_kafka", "duckdb", "pyarrow", "pandas"}


def loaded_by(code):
    """The heavy packages that `code` imports in a fresh interpreter."""
    script = f"{code}\nimport sys, json\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])} & HEAVY


@pytest.mark.parametrize("module", [headrace, sinks, stores, testing], ids=lambda module: module.__name__)
def test_all_is_sorted_and_every_name_in_it_is_there(module):
    assert list(module.__all__) == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("module", [headrace, sinks, stores], ids=lambda module: module.__name__)
def test_no_public_class_is_missing_from_all(module):
    classes = {name: value for name, value in vars(module).items() if inspect.isclass(value)}
    ours = {name for name, value in classes.items() if value.__module__.startswith("headrace.")}
    assert ours <= set(module.__all__)


def test_the_names_users_rely_on_are_there():
    assert {"Pipeline", "Kafka", "Json", "Text", "Bytes", "Limits", "configure"} <= set(headrace.__all__)
    assert {"Console", "DuckDB", "Memory", "Parquet"} <= set(sinks.__all__)
    assert {"Memory", "SQLite"} <= set(stores.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'kafka_stream'"):
        headrace.kafka_stream  # noqa: B018


def test_configure_is_the_one_of_the_session():
    from headrace.spark.session import configure

    assert headrace.configure is configure


def test_importing_headrace_loads_neither_spark_nor_a_driver():
    assert loaded_by("import headrace") == set()


def test_describing_a_pipeline_loads_neither_spark_nor_a_driver():
    code = """
import headrace as hr
from headrace import sinks, stores
hr.Pipeline(name="p", source=hr.Kafka("k:9", topics=["t"], format=hr.Json("a INT")),
            sink=sinks.DuckDB("x.duckdb", table="t"), guarantee="exactly-once")
hr.Pipeline(name="p", source=hr.Kafka("k:9", topics=["t"]), sink=sinks.Parquet("x"), guarantee="exactly-once",
            offsets=stores.SQLite("x.db"))
"""
    assert loaded_by(code) == set()


INTERRUPTED = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.argv = ["headrace", "--version"]
{start}
"""


@pytest.mark.parametrize(
    ("module", "start"),
    [
        ("headrace", "import headrace_command; headrace_command.main()"),
        ("headrace.cli.main", "import headrace_command; headrace_command.main()"),
        ("headrace.cli.main", "import runpy; runpy.run_module('headrace', run_name='__main__')"),
    ],
)
def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback(module, start):
    code = INTERRUPTED.format(module=module, start=start)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_the_command_and_the_module_say_their_version():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"headrace": "headrace_command:main"}
    for module in ("headrace", "headrace_command"):
        said = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=False)
        assert (said.returncode, said.stdout) == (0, f"headrace {headrace.__version__}\n")


@pytest.mark.parametrize("verb", [[], ["run"], ["check"], ["dev"], ["jars"], ["doctor"], ["demo"]], ids=" ".join)
def test_help_loads_neither_spark_nor_a_driver(verb):
    code = f"""
import sys
sys.argv = ["headrace", *{verb!r}, "--help"]
from headrace.cli.main import main
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
"""
    assert loaded_by(code) == set()


def test_importing_headrace_loads_no_module_that_is_not_needed():
    code = "import headrace, sys; print(*sorted(name for name in sys.modules if name.startswith('headrace')))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["headrace", "headrace._version", "headrace.support", "headrace.support.lazy_names"]


@pytest.mark.parametrize("module", [headrace, sinks, stores], ids=lambda module: module.__name__)
def test_lazy_names_are_the_ones_that_type_checkers_see(module):
    tree = ast.parse(Path(module.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    (homes,) = [ast.literal_eval(node) for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    assert homes == seen
    assert set(module.__all__) - {"__version__"} == set(seen)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("name", ["errors", "events", "sinks", "stores", "types"])
def test_modules_that_users_name_are_there_after_importing_headrace(name):
    code = f"import headrace as hr; print(hr.{name}.__name__)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"headrace.{name}"


def test_help_loads_no_connector_no_engine_and_no_server():
    code = """
import sys
sys.argv = ["headrace", "--help"]
from headrace.cli.main import main
try:
    main()
finally:
    print()
    print(*{name.split(".")[1] for name in sys.modules if name.startswith("headrace.")})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()[-1].split()) & {"connectors", "engine", "formats", "kafka", "spark"} == set()


def test_a_sink_that_is_asked_for_loads_no_other_connector():
    code = """
import sys
from headrace import sinks
sinks.DuckDB
found = {name.split(".")[2] for name in sys.modules if name.startswith("headrace.connectors.")}
print(*sorted(found))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(said.split()) <= {"duckdb", "shared", "sql"}
