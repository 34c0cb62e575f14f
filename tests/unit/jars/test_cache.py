"""The jar cache: what is asked of Ivy, what its answers mean, and what survives damage and death."""

from __future__ import annotations

import grp
import hashlib
import io
import os
import pwd
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.dev import running_servers
from headrace.errors import ConfigError, RetriableError
from headrace.jars import bundles, cache, checksums, ivy, java, pyspark_install
from headrace.jars.bundles import PROVEN, Bundle, ResolutionAttempt
from headrace.jars.ivy import Artifact
from headrace.tools import check, doctor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Answer = tuple[int, str, dict[str, bytes]]

TESTED = ("4.0.0", "4.0.1", "4.0.2", "4.1.0", "4.1.1", "4.2.0")
"""Releases of Spark whose connectors have pinned checksums."""

DONE = "\tfound org#thing;1.0 in somewhere\n\t[SUCCESSFUL ] org#thing;1.0!thing.jar (5ms)\n"
MISSING = "\t\t:: org.apache.spark#tokens;4.2.0: not found\n"
NETWORK = f"{MISSING}\tServer access error at url somewhere (java.net.ConnectException: Connection refused)\n"


class FakeIvy:
    """Answers like Ivy, one answer for each run, and leaves the jars of its answer where it was told to."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[str] = []
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], read: Callable[[str], None]) -> int:
        self.commands.append(command)
        self.asked.append(Path(command[command.index("-ivy") + 1]).read_text())
        code, output, files = self.answers.pop(0)
        into = Path(command[command.index("-retrieve") + 1]).parent
        for name, content in files.items():
            (into / name).write_bytes(content)
        for line in output.splitlines():
            read(line)
        return code


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeIvy:
    fake = FakeIvy()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.delenv(ivy.SETTINGS, raising=False)
    monkeypatch.setattr(ivy, "run", fake)
    monkeypatch.setattr(java, "path", lambda: Path("java"))
    monkeypatch.setattr(checksums, "pinned", {}.get)
    return fake


BUNDLE = Bundle.of("thing", Artifact("org", "thing", "1.0"))


@pytest.mark.parametrize(
    ("jar", "name", "version"),
    [
        ("kafka-clients-3.9.2.jar", "kafka-clients", "3.9.2"),
        ("spark-token-provider-kafka-0-10_2.13-4.0.0.jar", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        ("zstd-jni-1.5.6-10.jar", "zstd-jni", "1.5.6-10"),
        ("netty-all-4.1.1.Final-linux-x86_64.jar", "netty-all", "4.1.1.Final-linux-x86_64"),
        ("hive-shims-0.23-2.3.10.jar", "hive-shims-0.23", "2.3.10"),
        ("javax.inject-1.jar", "javax.inject", "1"),
        ("plain.jar", "plain", ""),
    ],
)
def test_a_jar_name_splits_into_name_and_version(jar: str, name: str, version: str) -> None:
    assert pyspark_install.split_version(jar) == (name, version)


def test_pyspark_is_found_without_importing_it() -> None:
    code = (
        "import sys; from headrace.jars import pyspark_install as i; i.folder(), i.version(), i.ivy();"
        "assert 'scala-library' in i.shipped(); sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, env=os.environ | _path()).returncode == 0


def _path() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


def test_a_fetch_leaves_jars_and_a_manifest(fake: FakeIvy) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})]
    lines: list[str] = []

    found = cache.fetch(BUNDLE, lines.append)

    assert [jar.read_bytes() for jar in found] == [b"bytes"]
    progress = [line for line in lines if not line.startswith("warning: ")]
    assert progress == ["fetching thing 1.0 … 1 found", "fetching thing 1.0 … 1 of 1 jar"]
    (manifest,) = cache.manifests()
    assert manifest.resolved == ("org:thing:1.0",)
    assert manifest.alternative is None
    assert cache.verify(manifest) == []


def test_native_libraries_come_along_where_asked_and_are_no_jars(fake: FakeIvy) -> None:
    found = {"thing-1.0.jar": b"bytes", "libthing-1.0.so": b"machine code"}
    fake.answers = [(0, DONE, found), (0, DONE, found)]

    (jar,) = cache.fetch(Bundle.of("thing", Artifact("org", "thing", "1.0"), natives=True))

    assert (jar.name, jar.with_name("libthing-1.0.so").read_bytes()) == ("thing-1.0.jar", b"machine code")
    types = fake.commands[0].index("-types")
    assert list(fake.commands[0][types + 1 : types + 5]) == ["jar", "bundle", "so", "dylib"]
    jar.with_name("libthing-1.0.so").write_bytes(b"damaged")
    (problem,) = cache.verify(cache.manifests()[0])
    assert problem.startswith("libthing-1.0.so: sha256 is ")
    cache.fetch(BUNDLE)
    assert "so" not in fake.commands[1]


PROGRAM = Bundle.of("program", Artifact("org", "program", "1.0", classifier="all", type="tar.gz"))


def archive(files: dict[str, bytes], link: str = "") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, "/"
            tar.addfile(member)
    return made.getvalue()


def test_an_archive_is_fetched_alone_and_unpacked(fake: FakeIvy) -> None:
    packed = archive({"run.jar": b"run", "lib/a-1.0.jar": b"a", "conf/x.txt": b"x"}, link="elsewhere")
    fake.answers = [(0, DONE, {"program-1.0-all.tar.gz": packed})] * 2

    found = cache.fetch(PROGRAM)

    folder = PROGRAM.directory
    assert found == [folder / "lib/a-1.0.jar", folder / "run.jar"]
    assert sorted(path.name for path in folder.iterdir()) == ["conf", "lib", "manifest.json", "run.jar"]
    assert (folder / "conf/x.txt").read_bytes() == b"x"
    assert '<artifact name="program" type="tar.gz" ext="tar.gz" m:classifier="all"/>' in fake.asked[0]
    assert 'transitive="false"' in fake.asked[0]
    command = fake.commands[0]
    assert "tar.gz" in command[command.index("-types") :]
    assert "-settings" in command, "a hole in the registry among the parents of its POM must not matter"
    assert cache.manifests()[0].resolved == ("org:program:1.0:all@tar.gz",)

    (folder / "conf/x.txt").write_bytes(b"damaged")
    assert cache.verify(cache.manifests()[0])[0].startswith("conf/x.txt: sha256 is ")
    cache.fetch(PROGRAM)
    assert (folder / "conf/x.txt").read_bytes() == b"x"


@pytest.mark.parametrize(
    "packed",
    [b"no archive", archive({"a": b"x" * 9999})[:-30], archive({"../a.jar": b""})],
    ids=["no archive", "cut off", "outside"],  # an archive says when it was made: its bytes are no name for a test
)
def test_an_archive_that_cannot_be_unpacked_leaves_nothing(fake: FakeIvy, packed: bytes, tmp_path: Path) -> None:
    fake.answers = [(0, DONE, {"program-1.0-all.tar.gz": packed})]
    with pytest.raises(ConfigError, match=r"program-1\.0-all\.tar\.gz cannot be unpacked"):
        cache.fetch(PROGRAM)
    assert [path.name for path in (tmp_path / "jars").iterdir()] == [".program-1.0.lock"]


def test_a_second_fetch_needs_neither_java_nor_network(fake: FakeIvy, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})]
    first = cache.fetch(BUNDLE)
    monkeypatch.setattr(java, "path", lambda: pytest.fail("looked for java"))
    assert cache.fetch(BUNDLE) == first


def test_a_damaged_jar_is_reported_and_fetched_again(fake: FakeIvy) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})] * 2
    (jar,) = cache.fetch(BUNDLE)
    jar.write_bytes(b"bites")
    (problem,) = cache.verify(cache.manifests()[0])
    assert problem.startswith("thing-1.0.jar: sha256 is ")
    lines: list[str] = []

    assert cache.fetch(BUNDLE, lines.append) == [jar]

    assert jar.read_bytes() == b"bytes"
    assert lines[0] == f"thing 1.0: {problem}; fetching again"


def test_a_lost_jar_is_fetched_again(fake: FakeIvy) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})] * 2
    (jar,) = cache.fetch(BUNDLE)
    jar.unlink()
    assert cache.fetch(BUNDLE)[0].exists()


def test_the_alternative_is_taken_when_the_exact_version_is_missing_and_it_is_reported(fake: FakeIvy) -> None:
    fake.answers = [(1, MISSING, {}), (0, DONE, {"spark-sql-kafka-0-10_2.13-4.2.0.jar": b"bytes"})]
    lines: list[str] = []

    cache.fetch(bundles.connector_bundle("4.2.0"), lines.append)

    assert "<override" not in fake.asked[0]
    assert 'module="spark-token-provider-kafka-0-10_2.13" rev="4.0.0"' in fake.asked[1]
    assert cache.manifests()[0].alternative == "token provider 4.0.0 instead of 4.2.0"
    assert lines[0] == (
        "spark-kafka 4.2.0: not in the registry: org.apache.spark#tokens;4.2.0; "
        "trying token provider 4.0.0 instead of 4.2.0"
    )


def test_the_exact_version_is_taken_when_it_is_there(fake: FakeIvy) -> None:
    fake.answers = [(0, DONE, {"spark-sql-kafka-0-10_2.13-4.2.0.jar": b"bytes"})]
    cache.fetch(bundles.connector_bundle("4.2.0"))
    assert cache.manifests()[0].alternative is None


def test_a_newer_spark_may_use_the_pinned_connector_and_an_older_one_the_first_of_its_line() -> None:
    def versions(pyspark: str) -> list[str]:
        return [route.artifacts[0].version for route in bundles.connector_bundle(pyspark).attempts]

    assert versions("4.3.0") == ["4.3.0", "4.3.0", "4.2.0", "4.2.0"]
    assert versions("4.0.5") == ["4.0.5", "4.0.5", "4.0.0", "4.0.0"]
    assert versions("4.2.0") == ["4.2.0", "4.2.0"]


def test_avro_has_the_version_of_spark_or_the_pinned_one(fake: FakeIvy) -> None:
    fake.answers = [(1, MISSING, {}), (0, DONE, {"spark-avro_2.13-4.1.1.jar": b"bytes"})]
    (jar,) = cache.fetch(bundles.avro_bundle("4.2.0"))
    assert 'name="spark-avro_2.13" rev="4.2.0"' in fake.asked[0]
    assert 'name="spark-avro_2.13" rev="4.1.1"' in fake.asked[1]
    assert jar.name == "spark-avro_2.13-4.1.1.jar"
    assert cache.manifests()[0].alternative == "Avro 4.1.1 instead of 4.2.0"
    assert len(bundles.avro_bundle("4.1.1").attempts) == 1


def test_a_session_gets_the_jars_for_kafka_and_for_avro(fake: FakeIvy) -> None:
    fake.answers = [(0, DONE, {"spark-sql-kafka-0-10_2.13-4.2.0.jar": b"a"}), (0, DONE, {"spark-avro.jar": b"b"})]
    assert [jar.read_bytes() for jar in cache.connector()] == [b"a", b"b"]


def test_what_pyspark_ships_is_neither_asked_for_nor_kept(fake: FakeIvy) -> None:
    fake.answers = [(0, DONE, {"kafka-clients-3.9.2.jar": b"a", "scala-library-2.13.1.jar": b"b"})]
    found = cache.fetch(bundles.connector_bundle("4.2.0"))
    assert [jar.name for jar in found] == ["kafka-clients-3.9.2.jar"]
    assert '<exclude module="hadoop-client-runtime"/>' in fake.asked[0]
    assert '<exclude module="kafka-clients"/>' not in fake.asked[0]


def test_a_network_failure_is_retriable_and_never_leads_to_the_alternative(fake: FakeIvy) -> None:
    fake.answers = [(1, NETWORK, {})]
    with pytest.raises(RetriableError, match=r"did not answer.*Connection refused") as caught:
        cache.fetch(bundles.connector_bundle("4.2.0"))
    assert "headrace jars fetch" in str(caught.value.hint)
    assert len(fake.commands) == 1


def test_what_no_route_finds_is_a_config_error_that_leaves_nothing(fake: FakeIvy, tmp_path: Path) -> None:
    fake.answers = [(1, MISSING, {"half-1.0.jar": b"half"})]
    with pytest.raises(ConfigError, match=r"not in the registry: org\.apache\.spark#tokens;4\.2\.0"):
        cache.fetch(BUNDLE)
    assert [path.name for path in (tmp_path / "jars").iterdir()] == [".thing-1.0.lock"]


def test_what_a_killed_fetch_left_is_swept_by_the_next(fake: FakeIvy, tmp_path: Path) -> None:
    left = tmp_path / "jars" / ".thing-1.0-killed"
    left.mkdir(parents=True)
    (left / "half.jar").write_bytes(b"half")
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})]
    cache.fetch(BUNDLE)
    assert not left.exists()


def test_fetches_at_the_same_time_download_once(fake: FakeIvy) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})]
    found: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: found.append(cache.fetch(BUNDLE))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(fake.commands) == 1


def test_ones_own_mirror_is_passed_to_ivy(fake: FakeIvy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = tmp_path / "ivysettings.xml"
    settings.write_text("<ivysettings/>")
    monkeypatch.setenv(ivy.SETTINGS, str(settings))
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})]
    cache.fetch(BUNDLE)
    command = fake.commands[0]
    assert command[command.index("-settings") + 1] == str(settings)


def test_a_mirror_file_that_is_not_there_is_a_config_error(fake: FakeIvy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ivy.SETTINGS, "/nowhere/ivysettings.xml")
    with pytest.raises(ConfigError, match=r"/nowhere/ivysettings\.xml"):
        cache.fetch(BUNDLE)


def test_without_java_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"java was not found; looked in JAVA_HOME \(not set\) and PATH") as caught:
        cache.fetch(BUNDLE)
    assert "openjdk-17" in str(caught.value.hint)


def test_a_cache_that_cannot_be_written_is_a_config_error(
    fake: FakeIvy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot keep jars") as caught:
        cache.fetch(BUNDLE)
    assert "HEADRACE_CACHE" in str(caught.value.hint)


def test_a_manifest_that_does_not_parse_counts_as_none(fake: FakeIvy) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})]
    BUNDLE.directory.mkdir(parents=True)
    (BUNDLE.directory / cache.MANIFEST).write_text('{"name": ')
    assert cache.fetch(BUNDLE)[0].exists()


def test_names_are_escaped_in_what_ivy_reads() -> None:
    asked = ivy.description([Artifact('a"b', "c<d", "1")], [], [])
    assert "c&lt;d" in asked
    assert ResolutionAttempt((Artifact("a", "b", "1"),)).alternative is None


def test_the_lines_of_a_run_are_read_and_its_exit_code_returned() -> None:
    lines: list[str] = []
    code = ivy.run([sys.executable, "-c", "print('one'); print('two'); raise SystemExit(3)"], lines.append)
    assert (code, lines) == (3, ["one", "two"])


def test_a_run_that_falls_silent_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ivy, "_STALL_SECONDS", 0.2)
    with pytest.raises(RetriableError, match="stalled"):
        ivy.run([sys.executable, "-c", "import time; time.sleep(60)"], lambda _: None)


SOUND = hashlib.sha256(b"bytes").hexdigest()


def test_every_bundle_that_headrace_fetches_has_pinned_checksums() -> None:
    ours = {bundle for server in running_servers.SERVERS.values() for bundle in server.bundles}
    of_spark = {make(version) for version in TESTED for make in (bundles.connector_bundle, bundles.avro_bundle)}
    for bundle in ours | of_spark:
        pins = checksums.pinned(bundle.directory.name)
        assert pins, f"{bundle}: add the lines of its files to {checksums.PINS.name}"
        assert {len(digest) for digest in pins.values()} == {64}


def test_what_a_registry_sends_instead_of_a_pinned_file_is_refused(
    fake: FakeIvy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "pinned", {"thing-1.0": {"thing-1.0.jar": SOUND}}.get)
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"other bytes"}), (0, DONE, {"thing-1.0.jar": b"bytes"})]

    with pytest.raises(ConfigError, match=r"wrong checksums: thing-1\.0\.jar: sha256 is"):
        cache.fetch(BUNDLE)
    assert cache.manifests() == []
    assert [jar.read_bytes() for jar in cache.fetch(BUNDLE)] == [b"bytes"]


def test_a_jar_that_a_registry_adds_is_not_taken_and_the_next_route_is_tried(
    fake: FakeIvy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "pinned", {"thing-1.0": {"thing-1.0.jar": SOUND}}.get)
    more = {"thing-1.0.jar": b"bytes", "evil-1.0.jar": b"evil"}
    fake.answers = [(0, DONE, more), (0, DONE, {"thing-1.0.jar": b"bytes"}), (0, DONE, more)]
    artifact = Artifact("org", "thing", "1.0")
    two = Bundle("thing", "1.0", (ResolutionAttempt((artifact,)), ResolutionAttempt((artifact,), (), "another way")))
    lines: list[str] = []

    assert [jar.name for jar in cache.fetch(two, lines.append)] == ["thing-1.0.jar"]
    assert "thing 1.0: no checksum is pinned for evil-1.0.jar; trying another way" in lines
    (bundles.root() / "thing-1.0" / "thing-1.0.jar").unlink()
    with pytest.raises(ConfigError, match=r"no checksum is pinned for evil-1\.0\.jar"):
        cache.fetch(BUNDLE)


def test_a_cache_whose_manifest_was_changed_with_its_jars_is_fetched_again(
    fake: FakeIvy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "pinned", {"thing-1.0": {"thing-1.0.jar": SOUND}}.get)
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})] * 2
    (jar,) = cache.fetch(BUNDLE)
    manifest = jar.with_name(cache.MANIFEST)
    jar.write_bytes(b"evil")
    manifest.write_text(manifest.read_text().replace(SOUND, hashlib.sha256(b"evil").hexdigest()))

    assert [jar.read_bytes() for jar in cache.fetch(BUNDLE)] == [b"bytes"]


def test_jars_are_read_once_and_then_only_when_they_were_touched(
    fake: FakeIvy, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})] * 2
    (jar,) = cache.fetch(BUNDLE)
    cache.fetch(BUNDLE)
    read: list[Path] = []
    monkeypatch.setattr(checksums, "sha256", lambda path: read.append(path) or SOUND)
    cache.fetch(BUNDLE)
    assert read == []
    before = jar.stat()
    jar.write_bytes(b"bytez")
    os.utime(jar, ns=(before.st_atime_ns, before.st_mtime_ns))  # a touch that hides: the size is the same, too
    cache.fetch(BUNDLE)
    assert read == [jar]


@pytest.mark.parametrize("which", ["", "jars", "jars/thing-1.0"])
def test_a_cache_that_others_can_write_is_refused(fake: FakeIvy, tmp_path: Path, which: str) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})]
    cache.fetch(BUNDLE)
    (tmp_path / which).chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by every user") as refused:
        cache.fetch(BUNDLE)
    assert refused.value.hint
    assert "chmod go-w" in refused.value.hint


@pytest.mark.parametrize(
    ("members", "first", "refused"),
    [
        ([], [], False),  # a group of one's own
        (["me"], [], False),
        (["ann"], [], True),
        ([], [("ann", 1001)], True),  # one group for all users
        ([], [("operator", 11)], False),  # an account of the system, beside the group root
    ],
)
def test_a_cache_that_its_group_can_write_is_refused_if_others_are_in_the_group(
    fake: FakeIvy, monkeypatch: pytest.MonkeyPatch, members: list[str], first: list[tuple[str, int]], refused: bool
) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})]
    cache.fetch(BUNDLE)
    bundles.root().chmod(0o775)
    group = bundles.root().stat().st_gid
    mine = pwd.struct_passwd(("me", "x", os.geteuid(), group, "", "", ""))
    users = [mine, *(pwd.struct_passwd((name, "x", uid, group, "", "", "")) for name, uid in first)]
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("g", "x", gid, members)))
    if not refused:
        assert cache.fetch(BUNDLE)
        return
    with pytest.raises(ConfigError, match="can be written by its group, and so by ann"):
        cache.fetch(BUNDLE)


def test_a_bundle_without_pinned_checksums_is_taken_with_a_warning_or_refused(
    fake: FakeIvy, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})] * 2
    monkeypatch.setenv(cache.UNPINNED, "refuse")
    with pytest.raises(ConfigError, match=r"thing 1\.0: this release of Headrace has no checksums for it"):
        cache.fetch(BUNDLE)
    assert cache.manifests() == []
    monkeypatch.delenv(cache.UNPINNED)
    lines: list[str] = []
    assert cache.fetch(BUNDLE, lines.append)
    assert any(line.startswith("warning: thing 1.0: this release of Headrace has no checksums") for line in lines)
    (told,) = doctor.check_jars()
    assert (told.state, "no checksums for it" in told.found) == ("warn", True)

    monkeypatch.setattr(checksums, "pinned", {"thing-1.0": {"thing-1.0.jar": SOUND}}.get)
    assert cache.unpinned_warning(BUNDLE) is None
    (told,) = doctor.check_jars()
    assert told.state == "ok"


def test_check_reports_a_spark_without_pinned_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark_install, "version", lambda: "4.3.9")
    assert [note.split(":")[0] for note in check._checksum_warnings()] == ["spark-kafka 4.3.9", "spark-avro 4.3.9"]
    monkeypatch.setattr(pyspark_install, "version", lambda: PROVEN)
    assert check._checksum_warnings() == []


def test_a_cache_of_another_user_is_refused_and_one_of_roots_is_not(
    fake: FakeIvy, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers = [(0, DONE, {"thing-1.0.jar": b"bytes"})]
    cache.fetch(BUNDLE)
    there = bundles.root().stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: there + 1)
    if there == 0:
        assert cache.fetch(BUNDLE)
        os.chown(bundles.root(), 12345, -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        cache.fetch(BUNDLE)
