"""Runs the Ivy resolver inside pyspark: writes its request and reads its result."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from headrace.errors import ConfigError, RetriableError
from headrace.jars import java, pyspark_install
from headrace.support.polling import readable
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Progress = Callable[[str], None]

SETTINGS = "HEADRACE_IVY_SETTINGS"
_STALL_SECONDS = 120.0  # seconds without a byte from Ivy, which prints a dot every few kilobytes

RETRY = "headrace jars fetch   (a machine without network: copy the cache folder from one that has it)"
_PROXY = "behind a proxy first: export JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=<host> -Dhttps.proxyPort=<port>'"

_WITHOUT_POMS = (
    '<ivysettings><settings defaultResolver="public"/><resolvers>'
    '<ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers></ivysettings>'
)

_NETWORK = re.compile(r"Server access error|^\s*Host \S+ not found|timed out|HTTP response code: 5\d\d")
_MISSING = re.compile(r"^\s*:: (\S+#\S+;\S+): \S|^\s*\[(?:FAILED|NOT FOUND)\s*\] (\S+)")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A Maven coordinate. If its `type` is not a jar, it is an archive that includes its dependencies."""

    org: str
    name: str
    version: str
    classifier: str = ""
    type: str = "jar"

    @property
    def archive(self) -> bool:
        return self.type != "jar"

    def __str__(self) -> str:
        suffix = f":{self.classifier}@{self.type}" if self.archive else ""
        return f"{self.org}:{self.name}:{self.version}{suffix}"


def description(artifacts: Iterable[Artifact], overrides: Iterable[Artifact], excludes: Iterable[str]) -> str:
    """The ivy.xml that requests `artifacts` and their runtime dependencies, without the names in `excludes`."""
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '<info organisation="headrace" module="jars"/>',
        '<configurations><conf name="default"/></configurations>',
        "<dependencies>",
        *(_dependency(artifact) for artifact in artifacts),
        *(f"<exclude module={quoteattr(name)}/>" for name in sorted(excludes)),
        *(
            f"<override org={quoteattr(a.org)} module={quoteattr(a.name)} rev={quoteattr(a.version)}/>"
            for a in overrides
        ),
        "</dependencies>",
        "</ivy-module>",
    ]
    return "\n".join(lines)


def _dependency(artifact: Artifact) -> str:
    attributes = f"org={quoteattr(artifact.org)} name={quoteattr(artifact.name)} rev={quoteattr(artifact.version)}"
    if not artifact.archive:
        return f'<dependency {attributes} conf="default->master,runtime(default)"/>'
    archive = (
        f"type={quoteattr(artifact.type)} ext={quoteattr(artifact.type)} m:classifier={quoteattr(artifact.classifier)}"
    )
    return (
        f'<dependency {attributes} conf="default->*" transitive="false">'
        f"<artifact name={quoteattr(artifact.name)} {archive}/></dependency>"
    )


def retrieve(
    request: str, *, types: Sequence[str], poms: bool, into: Path, work: Path, label: str, progress: Progress
) -> list[str]:
    """Resolve and download into `into`. Returns the artifacts that the registry does not have.

    `poms`: resolve dependencies through the POMs of the artifacts; an archive needs neither its POM nor the parents of
    it. Raises RetriableError if the registry does not answer, ConfigError if Ivy cannot work at all.
    """
    work.mkdir(parents=True, exist_ok=True)
    (work / "ivy.xml").write_text(request, encoding="utf-8")
    command = [
        str(java.path()),
        "-jar",
        str(pyspark_install.ivy()),
        *_settings(work, poms),
        "-ivy",
        str(work / "ivy.xml"),
    ]
    command += ["-confs", "default", "-types", *types, "-cache", str(work / "cache")]
    command += ["-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"]
    output: list[str] = []
    found = downloaded = 0

    def read(line: str) -> None:
        nonlocal found, downloaded
        output.append(line)
        if line.startswith("\tfound "):
            found += 1
            progress(f"fetching {label} … {found} found")
        elif "[SUCCESSFUL ]" in line:
            downloaded += 1
            progress(f"fetching {label} … {downloaded} of {counted(found, 'jar')}")

    return missing(output) if run(command, read) != 0 else []


def run(command: Sequence[str], read: Callable[[str], None]) -> int:
    """Run Ivy, pass its lines to `read`, and return its exit code. Raises RetriableError if it stalls."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as ivy:
        assert ivy.stdout is not None
        try:
            rest = b""
            while True:
                if not readable(ivy.stdout, _STALL_SECONDS):
                    raise RetriableError(f"the download stalled for {_STALL_SECONDS:.0f} s", hint=RETRY)
                chunk = os.read(ivy.stdout.fileno(), 65536)
                if not chunk:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    read(line.decode(errors="replace"))
            return ivy.wait()
        finally:
            ivy.kill()  # after Ctrl-C or silence, so that the resolver does not continue alone; no effect after its end


def missing(output: Sequence[str]) -> list[str]:
    """The artifacts that a failed run did not find. Raises if it failed for another reason.

    A network failure takes precedence: it must never count as an artifact that the registry lacks.
    """
    network = [line.strip() for line in output if _NETWORK.search(line)]
    if network:
        raise RetriableError(f"the registry did not answer: {network[0]}", hint=f"{RETRY}; {_PROXY}")
    artifacts = [match[1] or match[2] for line in output if (match := _MISSING.match(line))]
    if artifacts:
        return list(dict.fromkeys(artifacts))
    last_lines = [line.strip() for line in output if line.strip()][-5:]
    raise ConfigError(
        f"Ivy failed: {' / '.join(last_lines) or 'without a message'}", hint=f"check {SETTINGS}, then {RETRY}"
    )


def _settings(work: Path, poms: bool) -> list[str]:
    given = os.environ.get(SETTINGS)
    if not given and poms:
        return []
    if not given:
        (work / "ivysettings.xml").write_text(_WITHOUT_POMS, encoding="utf-8")
        return ["-settings", str(work / "ivysettings.xml")]
    if not Path(given).is_file():
        raise ConfigError(
            f"{SETTINGS} names a file that does not exist: {given}", hint=f"unset {SETTINGS}, or correct it"
        )
    return ["-settings", given]
