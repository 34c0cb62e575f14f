"""Every capability on the lists has a test that is there and is not skipped, or a reason."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = tomllib.loads((ROOT / "tests" / "capabilities.toml").read_text())
LISTS = {
    "kafka": {"K": range(1, 14), "P": range(1, 27), "C": (*range(6, 10), 14, *range(17, 35))},
    "direct": {"L": range(1, 15), "E": range(1, 7), "B": range(1, 15), "P": range(1, 6)},
}
WANTED = [
    f"{name}:{letter}{number}"
    for name, letters in LISTS.items()
    for letter, numbers in letters.items()
    for number in numbers
]


@cache
def functions_of(file):
    body = ast.parse((ROOT / file).read_text()).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def skips(test):
    """Whether something in a test or around it could skip it."""
    return [
        name
        for node in ast.walk(test)
        if (name := getattr(node, "attr", getattr(node, "id", ""))) in {"skip", "skipif", "xfail", "importorskip"}
    ]


def test_every_capability_is_on_the_list_and_no_other():
    assert list(SHOWN) == WANTED


@pytest.mark.parametrize("capability", SHOWN)
def test_a_capability_has_tests_that_are_there_and_not_skipped_or_a_reason(capability):
    shown = SHOWN[capability]
    if isinstance(shown, dict):
        assert list(shown) == ["reason"]
        assert len(shown["reason"].split()) > 15, "a reason that a user would accept"
        return
    for name in [shown] if isinstance(shown, str) else shown:
        file, _, test = name.partition("::")
        assert test.startswith("test_")
        assert test in functions_of(file), name
        assert skips(functions_of(file)[test]) == [], "a skipped test shows nothing"
