"""The doctor: what it sees, what it says, and which failures it knows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.doctor import doctor as command
from headrace.jars import classpath, java, pyspark_install
from headrace.jars.classpath import JarReference
from headrace.spark import jvm_errors
from headrace.tools import doctor
from headrace.tools.doctor import Check


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_422", 8), ("21", 21), ("unknown", 0)])
def test_a_java_version_has_a_major_number(version: str, major: int) -> None:
    assert java.Java(Path("java"), version).major == major


def test_an_old_java_fails_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find", lambda: java.Java(Path("/usr/bin/java"), "11.0.2"))
    (check,) = doctor.check_java()
    assert check.state == "fail"
    assert "11.0.2 at /usr/bin/java" in check.found
    assert "openjdk-17" in str(check.hint)


def test_a_java_home_without_java_fails_because_spark_insists_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(java, "find", lambda: java.Java(Path("/usr/bin/java"), "17.0.1"))
    assert doctor.check_java()[0] == Check(
        "java",
        "fail",
        "17.0.1 at /usr/bin/java; JAVA_HOME=/nowhere has no java, and Spark uses JAVA_HOME",
        "unset JAVA_HOME",
    )


def test_no_java_at_all_is_a_failed_check_and_not_an_exception(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    check = next(iter(doctor.examine()))
    assert (check.name, check.state) == ("java", "fail")


def test_an_old_python_fails() -> None:
    assert doctor.check_python((3, 10, 1))[0].state == "fail"
    assert doctor.check_python((3, 13, 0))[0].state == "ok"


@pytest.mark.parametrize(("version", "state"), [("3.5.1", "fail"), ("4.0.0", "ok"), ("4.3.0", "ok"), ("4.4.0", "fail")])
def test_pyspark_is_in_range_or_fails(monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    monkeypatch.setattr(pyspark_install, "version", lambda: version)
    assert doctor.check_pyspark()[0].state == state


def test_a_spark_home_of_another_version_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    check = doctor.check_environment()[0]
    assert check.state == "fail"
    assert "is Spark 3.5.1, pyspark is" in check.found
    assert check.hint == "unset SPARK_HOME"


def test_a_worker_python_of_another_version_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.8\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    check = doctor.check_environment()[1]
    assert check.state == "fail"
    assert check.hint == f"export PYSPARK_PYTHON={sys.executable}"


def test_a_connector_that_was_never_fetched_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    for check in doctor.check_connector():
        assert (check.state, check.hint) == ("warn", "headrace jars fetch")


@pytest.mark.parametrize(
    ("version", "alternative", "state"),
    [
        ("4.2.0", None, "ok"),
        ("4.2.0", "token provider 4.0.0 instead of 4.2.0", "ok"),
        ("4.1.1", "token provider 4.0.0 instead of 4.1.1", "warn"),
        ("4.3.0", "connector 4.2.0 instead of 4.3.0", "warn"),
    ],
)
def test_only_an_alternative_that_was_run_is_ok(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, alternative: str | None, state: str
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(pyspark_install, "version", lambda: version)
    folder = tmp_path / "jars" / f"spark-kafka-{version}"
    folder.mkdir(parents=True)
    manifest = {"name": "spark-kafka", "version": version, "resolved": [], "fetched": "today", "sha256": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"alternative": alternative}))
    assert doctor.check_connector()[0].state == state


def test_a_damaged_jar_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    folder = tmp_path / "jars" / "thing-1.0"
    folder.mkdir(parents=True)
    (folder / "thing-1.0.jar").write_bytes(b"bites")
    manifest = {"name": "thing", "version": "1.0", "resolved": [], "alternative": None, "fetched": "today"}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"sha256": {"thing-1.0.jar": "0" * 64}}))
    (check,) = doctor.check_jars()
    assert check.state == "fail"
    assert "thing 1.0 is damaged: thing-1.0.jar" in check.found


def test_jars_are_read_from_submit_arguments_in_every_spelling() -> None:
    found = classpath.in_submit_arguments(
        "--jars /a/kafka-clients-3.4.0.jar,/b/x-1.0.jar --packages=org:spark-sql-kafka-0-10_2.12:3.5.0 "
        "--conf spark.jars.packages=org:y_2.13:2.0 pyspark-shell"
    )
    assert [(jar.name, jar.scala, jar.version) for jar in found] == [
        ("kafka-clients", "", "3.4.0"),
        ("x", "", "1.0"),
        ("spark-sql-kafka-0-10", "2.12", "3.5.0"),
        ("y", "2.13", "2.0"),
    ]


def test_jars_are_read_from_spark_defaults() -> None:
    text = "# spark.jars /no-1.0.jar\nspark.jars /a/one-1.0.jar\n"
    text += "spark.driver.extraClassPath=/b/two-2.0.jar:/c/three-3.0.jar\n"
    assert [jar.name for jar in classpath.in_defaults(text, "file")] == ["one", "two", "three"]


def test_a_jar_for_another_scala_fails_with_its_name_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages org:spark-sql-kafka-0-10_2.12:3.5.0 pyspark-shell")
    check = doctor.check_classpath()[0]
    assert check.state == "fail"
    assert "spark-sql-kafka-0-10_2.12 3.5.0 (PYSPARK_SUBMIT_ARGS) is built for Scala 2.12" in check.found


def test_two_versions_of_the_kafka_client_clash_and_the_same_one_twice_does_not() -> None:
    def clients(*versions: str) -> list[JarReference]:
        return [JarReference.parse(f"kafka-clients-{version}.jar", "here") for version in versions]

    assert classpath.clashes(clients("3.9.2", "3.9.2")) == []
    (clash,) = classpath.clashes(clients("3.9.2", "3.4.0"))
    assert [jar.version for jar in clash] == ["3.4.0", "3.9.2"]


def test_a_directory_that_cannot_be_written_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "file"))
    check = doctor.check_directories()[1]
    assert check.state == "fail"
    assert "HEADRACE_STATE" in str(check.hint)


def test_a_broker_that_is_not_there_fails_in_time() -> None:
    check = doctor.check_broker("127.0.0.1:9", seconds=0.5)
    assert check.state == "fail"
    assert "does not answer" in check.found


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("AnalysisException: Failed to find data source: kafka. Please deploy", "headrace jars fetch"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: `kafka`. Make sure", "headrace jars fetch"),
        ("java.lang.NoSuchMethodError: scala.Predef$.refArrayOps([Ljava/lang/Object;)", "Scala 2.13"),
        ("java.lang.NoSuchMethodError: 'scala.collection.mutable.ArrayOps scala.Predef$.x()'", "Scala 2.13"),
        (
            "java.lang.NoClassDefFoundError: scala/Serializable\n at org.apache.spark.sql.kafka010.KafkaSourceRDD",
            "Scala",
        ),
        ("ClassNotFoundException: org.apache.kafka.common.serialization.ByteArrayDeserializer", "headrace jars path"),
        ("NoClassDefFoundError: org/apache/commons/pool2/impl/GenericKeyedObjectPoolConfig", "headrace jars path"),
        ("java.lang.NoSuchMethodError: 'void org.apache.kafka.clients.consumer.X.poll()'", "two versions"),
        ("ClassNotFoundException: org.apache.spark.sql.kafka010.KafkaSourceRDD", "connector is not loaded"),
        ("TypeError: 'JavaPackage' object is not callable", "connector is not loaded"),
        ("UnsupportedClassVersionError: org/apache/spark/launcher/Main has been compiled by", "Java is too old"),
        ("PySparkRuntimeError: [JAVA_GATEWAY_EXITED] Java gateway process exited before", "headrace doctor"),
    ],
)
def test_a_usual_failure_is_explained(error: str, words: str) -> None:
    assert words in str(jvm_errors.explain(error))


@pytest.mark.parametrize("error", ["", "ValueError: no", "Failed to find data source: delta", "kafka timed out"])
def test_any_other_failure_is_left_alone(error: str) -> None:
    assert jvm_errors.explain(error) is None


def _run(monkeypatch: pytest.MonkeyPatch, checks: list[Check], *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(doctor, "examine", lambda bootstrap, options: iter(checks))
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout


def test_the_command_prints_a_hint_under_what_is_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("java", "ok", "17"), Check("state", "warn", "[full]", "rm it")]
    assert _run(monkeypatch, checks) == (0, "ok   java: 17\nwarn state: [full]\n      hint: rm it\n")


def test_the_command_exits_with_1_when_a_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = _run(monkeypatch, [Check("java", "fail", "none", "install it")], "--json")
    assert code == 1
    assert json.loads(out) == [{"name": "java", "state": "fail", "found": "none", "hint": "install it"}]


def test_the_commands_load_no_driver() -> None:
    code = (
        "import sys, headrace.cli.dev, headrace.cli.jars, headrace.cli.doctor;"
        "sys.exit(bool({'pyspark', 'confluent_kafka', 'duckdb', 'pyarrow'} & set(sys.modules)))"
    )
    environment = {"PYTHONPATH": ":".join(entry for entry in sys.path if entry)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0
