"""Every capability on the list has a test that is there, or a reason."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = tomllib.loads((ROOT / "tests" / "capabilities.toml").read_text())
WANTED = [
    f"kafka:{letter}{number}"
    for letter, numbers in {
        "K": range(1, 14),
        "P": range(1, 27),
        "C": (*range(6, 10), 14, *range(17, 35)),
    }.items()
    for number in numbers
]


@cache
def functions_of(file):
    return {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_capability_is_on_the_list_and_no_other():
    assert list(SHOWN) == WANTED


@pytest.mark.parametrize("capability", SHOWN)
def test_a_capability_has_tests_that_are_there_or_a_reason(capability):
    shown = SHOWN[capability]
    if isinstance(shown, dict):
        assert list(shown) == ["reason"]
        assert len(shown["reason"].split()) > 5
        return
    for name in [shown] if isinstance(shown, str) else shown:
        file, _, test = name.partition("::")
        assert test.startswith("test_")
        assert test in functions_of(file), name
