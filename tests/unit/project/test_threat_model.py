"""Every claim of the threat model names a test that is there."""

import ast
import re

import pytest

from support.project import ROOT

PAGE = (ROOT / "docs" / "threat-model.md").read_text()
CLAIMS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.split("## What we defend")[1].split("\n## ")[0].splitlines()
    if line.startswith("|")
][2:]


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim[0][:60] for claim in CLAIMS])
def test_a_claim_has_tests_that_are_there(claim):
    _, against, tests = claim
    assert against
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    assert named
    for file, test in named:
        functions = {
            node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)
        }
        assert test in functions, f"{file}::{test}"


def test_the_pages_for_users_point_at_each_other():
    policy = (ROOT / "SECURITY.md").read_text()
    assert "docs/threat-model.md" in policy
    assert "docs/licences.md" in policy
    assert "../SECURITY.md" in PAGE
