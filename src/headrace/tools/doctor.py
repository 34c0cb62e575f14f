"""Checks what could keep Headrace from working on this machine, and suggests a command for each problem."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.dev import ports
from headrace.errors import ConfigError, RetriableError
from headrace.jars import bundles, cache, checksums, classpath, java, pyspark_install
from headrace.jars.bundles import PROVEN
from headrace.support import paths
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.jars.bundles import Bundle

OLDEST_PYTHON = (3, 11)
PYSPARK = ((4, 0), (4, 4))
_PIN = "pip install 'pyspark>=4.0,<4.4'"
_PROVEN = f"pip install 'pyspark=={PROVEN}'"
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: its subject, status and finding, and the cure if it is not ok."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    hint: str | None = None


def examine(bootstrap: Sequence[str] = (), options: Mapping[str, str] | None = None) -> Iterator[Check]:
    """Run all checks, basic ones first. A check that cannot be made has failed; none raises.

    `options` are settings of Kafka's clients.
    """
    checks: list[tuple[str, Callable[[], list[Check]]]] = [
        ("java", check_java),
        ("python", check_python),
        ("pyspark", check_pyspark),
        ("environment", check_environment),
        ("connector", check_connector),
        ("jars", check_jars),
        ("class path", check_classpath),
        ("directories", check_directories),
        ("ports", check_ports),
    ]
    for name, check in checks:
        try:
            yield from check()
        except ConfigError as error:
            yield Check(name, "fail", error.message, error.hint)
    for address in bootstrap:
        yield check_broker(address, options)


def check_java() -> list[Check]:
    found = java.find()
    where = f"{found.version} at {found.path}"
    if found.major < java.OLDEST:
        searched = " then ".join(java.searched_places())
        return [Check("java", "fail", f"{where}; Spark 4 needs {java.OLDEST}; looked in {searched}", java.INSTALL)]
    home = os.environ.get("JAVA_HOME")
    if home and not found.path.is_relative_to(home):
        return [
            Check("java", "fail", f"{where}; JAVA_HOME={home} has no java, and Spark uses JAVA_HOME", "unset JAVA_HOME")
        ]
    return [Check("java", "ok", where)]


def check_python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> list[Check]:
    shown = ".".join(str(part) for part in version)
    if version[:2] < OLDEST_PYTHON:
        return [Check("python", "fail", f"{shown}, older than 3.11", "uv venv --python 3.11")]
    return [Check("python", "ok", f"{shown} at {sys.executable}")]


def check_pyspark() -> list[Check]:
    version = pyspark_install.version()
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    where = f"{version} at {pyspark_install.folder()}"
    if not PYSPARK[0] <= numbers < PYSPARK[1]:
        return [Check("pyspark", "fail", f"{where}; 4.0 to 4.3 is supported", _PIN)]
    return [Check("pyspark", "ok", where)]


def check_environment() -> list[Check]:
    return [_spark_home(os.environ.get("SPARK_HOME")), _worker_python(os.environ.get("PYSPARK_PYTHON"))]


def _spark_home(home: str | None) -> Check:
    if not home:
        return Check("SPARK_HOME", "ok", "not set: pyspark's own Spark is used")
    core = next(iter(sorted(Path(home).glob("jars/spark-core_*.jar"))), None)
    if core is None:
        return Check("SPARK_HOME", "fail", f"{home} has no Spark", "unset SPARK_HOME")
    found, expected = pyspark_install.split_version(core.name)[1], pyspark_install.version()
    if found != expected:
        return Check("SPARK_HOME", "fail", f"{home} is Spark {found}, pyspark is {expected}", "unset SPARK_HOME")
    return Check("SPARK_HOME", "ok", f"{home}, Spark {found}")


def _worker_python(given: str | None) -> Check:
    name = "PYSPARK_PYTHON"
    if not given:
        return Check(name, "ok", "not set: headrace sets it to its own Python")
    found = shutil.which(given)
    if found is None:
        return Check(name, "fail", f"{given} does not exist", f"unset {name}")
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([found, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name, "fail", f"{found} does not run: {error}", f"unset {name}")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if done.stdout.strip() != version:
        finding = f"{found} is Python {done.stdout.strip()}, this is {version}: Spark needs the same version"
        return Check(name, "fail", finding, f"export {name}={sys.executable}")
    return Check(name, "ok", f"{found}, Python {version}")


def check_connector() -> list[Check]:
    return [_check_bundle("connector", bundles.connector_bundle()), _check_bundle("avro", bundles.avro_bundle())]


def _check_bundle(name: str, bundle: Bundle) -> Check:
    manifest = cache.Manifest.read(bundle.directory)
    if manifest is None:
        return Check(name, "warn", f"not fetched yet; it will be stored in {bundle.directory}", "headrace jars fetch")
    if manifest.alternative and manifest.alternative.startswith("connector"):
        return Check(name, "warn", f"{bundle}: {manifest.alternative}", _PROVEN)
    if manifest.alternative and bundle.version != PROVEN:
        return Check(name, "warn", f"{bundle}: {manifest.alternative}, an untested combination", _PROVEN)
    note = f", {manifest.alternative} (known to work)" if manifest.alternative else ", the exact version"
    return Check(name, "ok", f"{bundle}{note}")


def check_jars() -> list[Check]:
    checks = []
    for manifest in cache.manifests():
        problems = cache.verify(manifest)
        name = f"{manifest.name} {manifest.version}"
        if problems:
            checks.append(Check("jars", "fail", f"{name} is damaged: {'; '.join(problems)}", "headrace jars fetch"))
        else:
            pinned = checksums.pinned(manifest.directory.name) is not None
            status = (
                "checksums match"
                if pinned
                else "unchanged since its download: this release of Headrace has no checksums for it"
            )
            found = f"{name}: {counted(len(manifest.jars), 'jar')}, {status}"
            checks.append(Check("jars", "ok", found) if pinned else Check("jars", "warn", found, _PROVEN))
    return checks


def check_classpath() -> list[Check]:
    fetched = [manifest for bundle in bundles.bundles() if (manifest := cache.Manifest.read(bundle.directory))]
    own = [classpath.JarReference.parse(jar.name, str(jar.parent)) for manifest in fetched for jar in manifest.jars]
    referenced = classpath.referenced_jars() + own
    checks = [
        Check(
            "class path",
            "fail",
            f"{jar} is built for Scala {jar.scala}; this Spark has {pyspark_install.SCALA}",
            f"write {jar.name}_{pyspark_install.SCALA}, or leave it out: headrace brings its own connector",
        )
        for jar in classpath.wrong_scala(referenced)
    ]
    checks += [
        Check(
            "class path",
            "fail",
            f"two versions: {', '.join(str(jar) for jar in clash)}",
            f"leave {clash[0].name} out of spark.jars and PYSPARK_SUBMIT_ARGS; needed is: headrace jars path",
        )
        for clash in classpath.clashes(referenced)
    ]
    return checks or [Check("class path", "ok", "no jar for another Scala, no two versions of one")]


def check_directories() -> list[Check]:
    return [
        _directory("cache", paths.cache_directory(), "HEADRACE_CACHE"),
        _directory("state", paths.state_directory(), "HEADRACE_STATE"),
    ]


def _directory(name: str, path: Path, variable: str) -> Check:
    hint = f"export {variable}=<a folder you can write to, with space>"
    try:
        paths.private_directory(path)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"headrace")
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Check(name, "fail", f"{path} cannot be written: {error.strerror}", hint)
    found = f"{path}, {free // _MEGABYTE:,} MB free"
    if free < 100 * _MEGABYTE:
        return Check(name, "fail", found, hint)
    return Check(name, "warn", found, hint) if free < 1000 * _MEGABYTE else Check(name, "ok", found)


def check_ports() -> list[Check]:
    try:
        ports.free(2)
    except OSError as error:
        return [
            Check(
                "ports",
                "fail",
                str(error),
                "ip link set lo up   (in a container: allow the loopback interface)",
            )
        ]
    note = "" if ports.is_free(9092) else "; 9092 is taken, dev servers choose another"
    return [Check("ports", "ok", f"{ports.HOST} can be listened on{note}")]


def check_broker(address: str, options: Mapping[str, str] | None = None, seconds: float = 5.0) -> Check:
    from headrace.kafka.admin import Admin
    from headrace.kafka.client import Client

    name = f"broker {address}"
    try:
        found = Admin(Client(address, options or {}), seconds).describe_cluster()
    except RetriableError as error:
        finding = f"does not answer within {seconds:.0f} s: {error.message}"
        return Check(
            name, "fail", finding, "headrace dev up kafka   (or check the address, the firewall, TLS settings)"
        )
    except ConfigError as error:
        return Check(name, "fail", error.message, error.hint)
    return Check(name, "ok", f"{counted(len(found.nodes), 'broker')}, cluster {found.cluster_id}")
